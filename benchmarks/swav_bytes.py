"""Communication of a SwAV step: payload in bytes of each exchange, with 2 and 4 gloo processes.

python -m benchmarks.swav_bytes
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from regard.pictures import Arrays
from regard.swav import Canvases, preset
from regard.swav._pretrain import build
from regard.training import Order, synchronise_norms

STEPS, BATCH = 3, 64


def chosen():
    return preset("small", batch_size=BATCH, queue=256, prototypes=100, iterations=3)


class Whole(nn.Module):
    """A module whose forward pass is the loss, because DDP wraps the forward pass."""

    def __init__(self, task):
        """Wrap the task."""
        super().__init__()
        self.task = task

    def forward(self, batch):
        """The loss."""
        return self.task.loss(batch)[0]


def worker(rank, processes, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    settings = chosen()
    task = build(settings)
    synchronise_norms(task)
    sent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    plain = dist.all_reduce

    def counted(tensor, *arguments, **options):
        name = "codes" if tensor.numel() in (1, 2, settings.prototypes, 2 * settings.prototypes) else "norms"
        sent[name] += tensor.numel() * tensor.element_size()
        calls[name] += 1
        return plain(tensor, *arguments, **options)

    dist.all_reduce = counted
    model = DistributedDataParallel(Whole(task))
    buffers = sum(b.numel() * b.element_size() for b in task.buffers())

    def hook(state, bucket):
        sent["gradients"] += bucket.buffer().numel() * bucket.buffer().element_size()
        calls["gradients"] += 1
        work = plain(bucket.buffer(), async_op=True).get_future()
        return work.then(lambda done: done.value()[0] / processes)

    model.register_comm_hook(None, hook)
    data = Canvases(Arrays(torch.randint(0, 256, (4 * BATCH, 3, 32, 32), dtype=torch.uint8)), 32)
    order = Order(len(data), BATCH, 0, rank, processes)
    optimizer = task.optimizer()
    for number in range(STEPS):
        epoch, indices = order.at(number)
        optimizer.zero_grad()
        model(data.batch(indices, epoch)).backward()
        optimizer.step()
        sent["buffers"] += buffers
        calls["buffers"] += 1
    if rank == 0:
        per_step = {name: sent[name] / STEPS for name in sent}
        times = {name: calls[name] / STEPS for name in calls}
        parameters = sum(p.numel() for p in task.parameters())
        Path(folder, "measured.json").write_text(
            json.dumps({"processes": processes, "bytes": per_step, "calls": times, "parameters": parameters})
        )
    dist.destroy_process_group()


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for processes in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (processes, folder), nprocs=processes)
            rows.append(json.loads(Path(folder, "measured.json").read_text()))
        print(rows[-1], flush=True)
    settings = chosen()
    out = {"settings": {"batch": BATCH, "prototypes": settings.prototypes, "dim": settings.dim}, "rows": rows}
    Path(__file__).parent.joinpath("results", "swav_bytes.json").write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
