"""Two processes with half a batch each compute what one computes with the whole: loss, norms, codes, queue."""

import contextlib
import csv
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from swav.test_pretrain import TINY, flags, go, pictures

from regard.swav import Queue
from regard.training import latest

# AdamW divides a gradient by its own size: where that is almost zero, rounding decides the step. LARS does not.
MOMENTUM = {"optimizer": "lars", "lr": 0.05}


def worker(rank, processes, folder, steps):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)  # so Lightning knows that it was started several times
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    go(folder / "two", steps=steps, devices=processes, strategy="ddp", device="cpu", log_every=1, **MOMENTUM)
    dist.barrier()  # none leaves while another still hears from it
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


def group(number):
    """The living processes of a process group; what has ended but was not waited for is not one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == number and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_the_command_starts_two_processes(tmp_path):
    """`regard pretrain --devices 2` is one process with the same batch, and nothing of it stays behind."""
    go(tmp_path / "one", steps=4, log_every=1, **MOMENTUM)
    np.save(tmp_path / "pictures.npy", pictures().pictures.numpy())
    (tmp_path / "regard").write_text("from regard.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    sets = flags({name: value for name, value in (TINY | MOMENTUM).items() if name != "batch_size"})
    given = ["--steps", "4", "--batch-size", "8", "--devices", "2", "--strategy", "ddp", "--log-every", "1"]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "regard", "pretrain", "pictures.npy", "--out", "two", *given, *sets],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert said.count("Backbone:") == said.count("40 pictures") == 1  # one voice
    deadline = time.monotonic() + 60
    while group(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], abs=1e-5)


def test_a_restored_queue_is_split(monkeypatch):
    queue = Queue(4, 1, views=1)
    queue.load({"rows": torch.arange(4.0).view(1, 4, 1)})
    monkeypatch.setattr("regard.swav._queue.world", lambda: (1, 2))
    assert queue.rows.flatten().tolist() == [2.0, 3.0]
    queue.push(torch.tensor([[[9.0]]]))
    assert queue.rows.flatten().tolist() == [3.0, 9.0]
