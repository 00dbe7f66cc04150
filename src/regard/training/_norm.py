"""Batch norm over the batches of all processes, on any device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from regard._problem import Problem


class _Sum(Function):
    """The sum over the processes of a group, default all; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


#: Every kind of batch norm, as the class that torch derives them from has no public name.
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class _Synchronised:
    """Mixed into a batch norm: in training, mean and variance are those of the whole batch of a group of processes.

    `nn.SyncBatchNorm` needs CUDA. Processes may have different numbers of samples. Two sums are exchanged, one for the
    mean and one for the squared deviations from it, so that nothing cancels.
    """

    group: dist.ProcessGroup | None = None  # default all processes

    def forward(self, x: Tensor) -> Tensor:
        """As batch norm."""
        assert isinstance(self, BatchNorm)
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(x)
        axes = [0, *range(2, x.dim())]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        shape = (1, -1, *(1,) * (x.dim() - 2))
        local_count = wide.new_full((1,), wide.numel() / wide.shape[1])
        sums: Tensor = _Sum.apply(torch.cat([wide.sum(axes), local_count]), self.group)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        variance: Tensor = _Sum.apply(centred.square().sum(axes), self.group) / count
        if self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            rate = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
                unbiased = variance * count / (count - 1).clamp(min=1)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)
        out = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(x.dtype)


class BatchNorm1d(_Synchronised, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over all processes."""


class BatchNorm2d(_Synchronised, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over all processes."""


def synchronise_norms(module: nn.Module, neighbours: int = 0) -> nn.Module:
    """Make every batch norm in `module` one over several processes, in place; names and weights do not change.

    `module`: the same in every process.
    `neighbours`: processes that share statistics, with ranks that follow each other; default 0, all. With 1 each
        process has its own, and nothing is exchanged.

    >>> type(synchronise_norms(nn.Sequential(nn.BatchNorm2d(4)))[0]).__module__
    'regard.training._norm'
    """
    if neighbours == 1:
        return module
    group = _neighbourhood(neighbours)
    for child in module.modules():
        if type(child) is nn.BatchNorm1d:
            child.__class__ = BatchNorm1d
        elif type(child) is nn.BatchNorm2d:
            child.__class__ = BatchNorm2d
        if isinstance(child, _Synchronised):
            object.__setattr__(child, "group", group)  # no part of the module's state
    return module


def _neighbourhood(neighbours: int) -> dist.ProcessGroup | None:
    """The group of this process among blocks of so many; None for all. Every process makes every group."""
    if not dist.is_initialized() or not 0 < neighbours < dist.get_world_size():
        return None
    if dist.get_world_size() % neighbours:
        raise Problem(
            f"{dist.get_world_size()} processes cannot be divided into groups of {neighbours}. Take a divisor of it: "
            "--norm-processes"
        )
    ranks = [list(range(first, first + neighbours)) for first in range(0, dist.get_world_size(), neighbours)]
    groups = [dist.new_group(block) for block in ranks]
    mine: dist.ProcessGroup = groups[dist.get_rank() // neighbours]
    return mine
