"""Several trainings side by side, each in a process of its own on one core."""

from __future__ import annotations

import csv
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.training import latest
from regard.vqa.train import TrainSettings


@dataclass(frozen=True)
class Job:
    """One training: where it goes, what it learns from, and how."""

    out: Path
    data: Path
    features: Path
    settings: TrainSettings
    split: str = "train"
    limit: int | None = None  # train on the first so many questions only


def run_jobs(jobs: list[Job], workers: int = 2, progress: Callable[[float], None] | None = None) -> list[int]:
    """Train all, `workers` at a time, and return the steps of each; finished ones are not trained again.

    `progress` is called about once a second with the share that is done.
    """
    waiting = [job for job in jobs if not _done(job)]
    if waiting:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=context) as pool:
            running = [pool.submit(_run, job) for job in waiting]
            while not all(future.done() for future in running):
                if progress:
                    progress(sum(_share(job) for job in waiting) / len(waiting))
                if failed := next((f for f in running if f.done() and f.exception()), None):
                    for future in running:
                        future.cancel()
                    failed.result()
                time.sleep(0.5)
            for future in running:
                future.result()
    found = [latest(job.out) for job in jobs]
    return [checkpoint.step if checkpoint else 0 for checkpoint in found]


def read_job(job: Job) -> tuple[Any, Any]:
    """The records and the store of a job."""
    from regard.vqa.features import FeatureStore
    from regard.vqa.read import read_questions

    records = read_questions(job.data, job.split)
    if job.limit is not None:
        records.records = records.records[: job.limit]
    return records, FeatureStore.open(job.features)


def _run(job: Job) -> None:
    import torch

    from regard.vqa.train import train

    torch.set_num_threads(1)
    records, store = read_job(job)
    trained = train(job.out, records, store, job.settings, progress=False, log_every=10)
    (job.out / "done").write_text(f"{trained.fitted.seconds:.1f}\n")


def _done(job: Job) -> bool:
    return (job.out / "done").is_file()


def _share(job: Job) -> float:
    """How far a training is, read from its log."""
    if _done(job):
        return 1.0
    try:
        with (job.out / "log.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return min(1.0, int(rows[-1]["step"]) / int((job.out / "steps").read_text()))
    except (OSError, IndexError, KeyError, ValueError):
        return 0.0
