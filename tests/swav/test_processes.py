"""Two processes with half a batch each compute what one computes with the whole: loss, norms, codes, queue."""

import csv
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from swav.test_pretrain import go

from regard.swav import Queue
from regard.training import latest

# AdamW divides a gradient by its own size: where that is almost zero, rounding decides the step. LARS does not.
MOMENTUM = {"optimizer": "lars", "lr": 0.05}


def worker(rank, processes, folder, steps):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)  # so Lightning knows that it was started several times
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    go(folder / "two", steps=steps, devices=processes, strategy="ddp", accelerator="cpu", log_every=1, **MOMENTUM)
    dist.destroy_process_group()


def losses(out):
    with (out / "log.csv").open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def test_two_processes_are_one(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    go(tmp_path / "one", steps=8, log_every=1, **MOMENTUM)
    mp.spawn(worker, (2, tmp_path, 8), nprocs=2)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == len(two) == 8
    for a, b in zip(one, two, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
        assert b["residual"] == pytest.approx(a["residual"], abs=1e-4)
        assert b["code_entropy"] == pytest.approx(a["code_entropy"], abs=1e-4)
        assert b["rank"] == pytest.approx(a["rank"], abs=1e-3)
    # The checkpoint has the queue of both, in some order.
    rows = [latest(tmp_path / n).state()["extra"]["queue"]["rows"] for n in ("one", "two")]
    assert rows[0].shape == rows[1].shape == (2, 16, 8)
    assert one[-1]["loss"] != pytest.approx(one[0]["loss"], abs=1e-2)  # something was learned
    near = torch.cdist(rows[0], rows[1]).amin(-1)
    assert near.max() < 1e-3
    # One process can go on with what two have written.
    assert go(tmp_path / "two", steps=9, **MOMENTUM).fitted.resumed == 8


def test_a_restored_queue_is_split(monkeypatch):
    queue = Queue(4, 1, views=1)
    queue.load({"rows": torch.arange(4.0).view(1, 4, 1)})
    monkeypatch.setattr("regard.swav._queue.world", lambda: (1, 2))
    assert queue.rows.flatten().tolist() == [2.0, 3.0]
    queue.push(torch.tensor([[[9.0]]]))
    assert queue.rows.flatten().tolist() == [3.0, 9.0]
