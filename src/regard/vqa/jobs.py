"""Several trainings in parallel, each in its own process on one core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TypeVar

from regard._problem import Problem
from regard._ranks import alone
from regard._workers import run_parallel
from regard.training import Running
from regard.training._data import DataDescription
from regard.vqa.feature_store import FeatureStore
from regard.vqa.folder import AnsweringFolder
from regard.vqa.provenance import training_data
from regard.vqa.read import read_questions
from regard.vqa.settings import TrainSettings, settings_of

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One training: its folder, questions, features, settings, and the folder of pictures if it is elsewhere.

    start: a run that is trained already, and whose weights are the first; None for random ones.
    """

    out: AnsweringFolder
    data: Path
    features: Path
    settings: TrainSettings
    running: Running = field(default_factory=lambda: Running(progress=False))
    pictures: Path | None = None
    start: AnsweringFolder | None = None


def run_jobs(
    jobs: list[Job], then: Callable[[Job], T], workers: int = 2, progress: Callable[[float], None] | None = None
) -> list[T]:
    """Train all jobs, and return the result of `then` for each.

    Finished jobs are not trained again; a Problem if a folder has a run with other settings or data. Ctrl-c, SIGTERM
    and an error of one job end the others after their current step.

    `jobs`: the trainings.
    `then`: called with a job when it is trained, in the process that trained it.
    `workers`: trainings at a time; default 2.
    `progress`: called about twice a second with the share that is trained; default None.
    """
    resumed = [job for job in jobs if job.running.resume]
    for job in resumed:
        _check_settings(job)
    _check_data(resumed)

    def look() -> None:
        if progress:
            progress(sum(job.out.share() for job in jobs) / len(jobs))

    kept = f"the last steps are kept in {jobs[0].out.path.parent}"
    with _allocator_keeps_memory(), alone():
        return run_parallel(partial(_run, then=then), jobs, workers, look=look, kept=kept)


@contextmanager
def _allocator_keeps_memory() -> Iterator[None]:
    """Processes that start within keep freed memory (glibc malloc): returning it costs a tenth of a small step."""
    options = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
    added = {name: value for name, value in options.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _run(job: Job, then: Callable[[Job], T]) -> T:
    """Train a job on one thread unless it is done, and return the result of `then`."""
    import torch

    from regard.vqa.train import train

    torch.set_num_threads(1)
    if not (job.running.resume and job.out.is_done):
        records, store = read_questions(job.data, "train", job.pictures), FeatureStore.open(job.features)
        start = None if job.start is None else job.start.path
        trained = train(job.out.path, records, store, job.settings, running=job.running, start=start)
        job.out.write_done(trained.fitted.seconds)
    return then(job)


def _check_data(jobs: list[Job]) -> None:
    """Raise a Problem if the folder of a job has a run on other data; they are read only if there are runs."""
    described: dict[tuple[Path, Path, Path | None], DataDescription] = {}
    for job in jobs:
        if not job.out.is_begun or job.out.read_data() is None:
            continue
        key = (job.data, job.features, job.pictures)
        if key not in described:
            records = read_questions(job.data, "train", job.pictures).keep_answered()
            described[key] = training_data(records, FeatureStore.open(job.features))
        job.out.check_data(described[key])


def _check_settings(job: Job) -> None:
    """Raise a Problem if the folder of a job has a run with other settings."""
    if not job.out.config.is_file():
        return
    try:
        config = job.out.read_config()
        written = settings_of(config)
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{job.out.config} cannot be read ({error}). Train into another folder.") from error
    start = None if job.start is None else job.start.path.name
    if config.get("start") != start:
        was, now = (f"the weights of {name}" if name else "random weights" for name in (config.get("start"), start))
        raise Problem(f"{job.out.path} has a run that began with {was}, now {now}. Name another folder, or: --fresh")
    if written != job.settings:
        pairs = ((written, job.settings), (written.model, job.settings.model))
        differences = [
            f"{f.name} {getattr(old, f.name)}, now {getattr(new, f.name)}"
            for old, new in pairs
            for f in fields(old)
            if f.name != "model" and getattr(old, f.name) != getattr(new, f.name)
        ]
        raise Problem(
            f"{job.out.path} has a run with other settings ({'; '.join(differences)}). Name another folder, or start "
            "over: --fresh"
        )
