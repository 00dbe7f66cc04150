"""Several trainings side by side, each in a process of its own on one core."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from regard._problem import Problem
from regard.training import Running
from regard.vqa.folder import AnsweringFolder
from regard.vqa.settings import TrainSettings, settings_of

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One training: where it goes, what it learns from, and how."""

    out: AnsweringFolder
    data: Path
    features: Path
    settings: TrainSettings
    running: Running = field(default_factory=lambda: Running(progress=False))


def run_jobs(
    jobs: list[Job], then: Callable[[Job], T], workers: int = 2, progress: Callable[[float], None] | None = None
) -> list[T]:
    """Train all, `workers` at a time, and return what `then` finds of each, in the process that has trained it.

    Finished jobs are not trained again; a Problem if a folder holds a run with other settings. `progress` is called
    about twice a second with the share that is trained.
    """
    for job in jobs:
        _check_settings(job)
    context = multiprocessing.get_context("spawn")
    with _roomy(), ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
        running = [pool.submit(_run, job, then) for job in jobs]
        while not all(future.done() for future in running):
            if progress:
                progress(sum(job.out.share() for job in jobs) / len(jobs))
            if failed := next((f for f in running if f.done() and f.exception()), None):
                for future in running:
                    future.cancel()
                failed.result()
            time.sleep(0.5)
        return [future.result() for future in running]


@contextmanager
def _roomy() -> Iterator[None]:
    """Processes that start in here keep memory that was freed: to ask for it anew takes a tenth of a small step."""
    wanted = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _run(job: Job, then: Callable[[Job], T]) -> T:
    import torch

    from regard.vqa.features import FeatureStore
    from regard.vqa.read import read_questions
    from regard.vqa.train import train

    torch.set_num_threads(1)
    if not job.out.is_done:
        records, store = read_questions(job.data, "train"), FeatureStore.open(job.features)
        trained = train(job.out.path, records, store, job.settings, running=job.running)
        job.out.write_done(trained.fitted.seconds)
    return then(job)


def _check_settings(job: Job) -> None:
    if not job.out.config.is_file():
        return
    try:
        found = settings_of(job.out.read_config())
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{job.out.config} cannot be read ({error}). Train into another folder.") from error
    if found != job.settings:
        pairs = ((found, job.settings), (found.model, job.settings.model))
        others = [
            f"{f.name} {getattr(old, f.name)}, now {getattr(new, f.name)}"
            for old, new in pairs
            for f in fields(old)
            if f.name != "model" and getattr(old, f.name) != getattr(new, f.name)
        ]
        raise Problem(f"{job.out.path} has a run with other settings ({'; '.join(others)}). Name another folder.")
