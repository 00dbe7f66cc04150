"""Trainings shared by processes that see the same folder, by a queue of leases on its disk that survives their loss."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard._lock import BeingWritten
from regard._ranks import Ranks
from regard.training._folder import RunFolder
from regard.vqa.jobs import Job, run_jobs
from regard.vqa.leases import Leases

_LOOK = 2.0  # seconds between two looks at the work of others


@dataclass(frozen=True)
class JobQueue:
    """The results of jobs in a folder, and the leases of those that are worked on.

        NAME.json   the result of a job, with a digest of what it depends on
        NAME.0      its lease: `regard.vqa.leases`

    `folder`: of these files.
    `key`: what the results depend on beside the run itself, as plain values; results with another key do not count.
    """

    folder: Path
    key: Any

    @cached_property
    def leases(self) -> Leases:
        """The leases of the jobs."""
        return Leases(self.folder)

    def result(self, job: Job) -> Any:
        """What was written for a job; None if nothing was, or for another key or another run."""
        try:
            written = json.loads(self._file(job).read_text())
            return written["result"] if written["digest"] == self._digest(job) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, job: Job, result: Any) -> None:
        """Write the result of a job that has ended."""
        RunFolder.write_json(self._file(job), {"digest": self._digest(job), "result": result})

    def _file(self, job: Job) -> Path:
        return self.folder / f"{job.out.path.name}.json"

    def _digest(self, job: Job) -> str:
        """Of the key and of the run: its settings and its data."""
        data = job.out.read_data()
        known = [self.key, job.settings.to_json(), None if data is None else data.to_json()]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def share_jobs(
    jobs: Sequence[Job],
    then: Callable[[Job], Any],
    queue: JobQueue,
    ranks: Ranks,
    workers: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[Any]:
    """Train all jobs together with other processes that call this, and return the result of `then` for each.

    A job whose process is gone is taken over, from its last checkpoint, when its lease ends. All processes return when
    all results are there.

    `jobs`: the same in every process.
    `then`: called with a job when it is trained; returns plain values, for JSON.
    `queue`: the same folder and key in every process.
    `ranks`: of this process: each begins with another job.
    `workers`: trainings at a time in this process; default 1.
    `progress`: as in `run_jobs`; default None.
    """
    leases = queue.leases
    results: dict[int, Any] = {}
    numbers = [(number + ranks.rank) % len(jobs) for number in range(len(jobs))]

    def show(_: float = 0.0) -> None:
        if progress:
            progress(sum(job.out.share() for job in jobs) / len(jobs))

    while True:
        results |= {n: found for n in numbers if n not in results and (found := queue.result(jobs[n])) is not None}
        if len(results) == len(jobs):
            return [results[n] for n in range(len(jobs))]
        with ExitStack() as held:
            mine: list[Job] = []
            for n in numbers:
                if len(mine) == workers or n in results:
                    continue
                has = held.enter_context(leases.hold(jobs[n].out.path.name))
                if has and queue.result(jobs[n]) is None:  # not written since, by the one that had the lease
                    mine.append(jobs[n])
            try:
                if mine:
                    for job, result in zip(mine, run_jobs(mine, then, workers, show), strict=True):
                        queue.write(job, result)
                    continue
            except BeingWritten:  # by a process that was thought to be gone: its work is not lost
                pass
        show()
        time.sleep(_LOOK)
