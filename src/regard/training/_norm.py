"""Batch norm over the batches of all processes, on any device."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function


class _Sum(Function):
    """The sum over processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


#: Every kind of batch norm, as the class that torch derives them from has no public name.
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class _Synchronised:
    """Mixed into a batch norm: in training, mean and variance are those of the whole batch of all processes.

    `nn.SyncBatchNorm` needs CUDA. Processes may have different numbers of samples. Two sums are exchanged, one for the
    mean and one for the squared deviations from it, so that nothing cancels.
    """

    def forward(self, x: Tensor) -> Tensor:
        """As batch norm."""
        assert isinstance(self, BatchNorm)
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(x)
        axes = [0, *range(2, x.dim())]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        shape = (1, -1, *(1,) * (x.dim() - 2))
        local_count = wide.new_full((1,), wide.numel() / wide.shape[1])
        sums: Tensor = _Sum.apply(torch.cat([wide.sum(axes), local_count]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        variance: Tensor = _Sum.apply(centred.square().sum(axes)) / count
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


def synchronise_norms(module: nn.Module) -> nn.Module:
    """Make every batch norm in `module` one over all processes, in place; names and weights do not change.

    >>> type(synchronise_norms(nn.Sequential(nn.BatchNorm2d(4)))[0]).__module__
    'regard.training._norm'
    """
    for child in module.modules():
        if type(child) is nn.BatchNorm1d:
            child.__class__ = BatchNorm1d
        elif type(child) is nn.BatchNorm2d:
            child.__class__ = BatchNorm2d
    return module
