"""Batch norms of four processes that share statistics with some of the others: values, gradients, running averages."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from regard._problem import Problem
from regard.training._norm import synchronise_norms

PROCESSES = 4


def batch(rank):
    """Different numbers of samples, around different means."""
    return torch.randn(3 + rank, 2, 4, 4, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) + rank


def norm():
    torch.manual_seed(0)
    return nn.BatchNorm2d(2).double()


def through(layer, x):
    """The output, the gradient in the input, and the running statistics."""
    x = x.clone().requires_grad_()
    y = layer(x)
    (dx,) = torch.autograd.grad((y.sin() * (1 + y)).sum(), x)
    return y.detach(), dx, torch.stack([layer.running_mean, layer.running_var])


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    for neighbours in (0, 1, 2, 4, 8):
        torch.save(through(synchronise_norms(norm(), neighbours), batch(rank)), folder / f"{neighbours}-{rank}.pt")
    with pytest.raises(Problem, match="4 processes cannot be divided into groups of 3"):
        synchronise_norms(norm(), 3)
    dist.barrier()  # none leaves while another still hears from it
    dist.destroy_process_group()


def test_statistics_are_those_of_the_group(tmp_path):
    mp.spawn(worker, (tmp_path,), nprocs=PROCESSES)
    for neighbours, size in ((0, 4), (1, 1), (2, 2), (4, 4), (8, 4)):
        for first in range(0, PROCESSES, size):
            ranks = range(first, first + size)
            y, dx, running = through(norm(), torch.cat([batch(rank) for rank in ranks]))
            parts = [torch.load(tmp_path / f"{neighbours}-{rank}.pt", weights_only=True) for rank in ranks]
            torch.testing.assert_close(torch.cat([part[0] for part in parts]), y)
            torch.testing.assert_close(torch.cat([part[1] for part in parts]), dx)
            for part in parts:
                torch.testing.assert_close(part[2], running)
