"""A device that is not there: tensors that say they are on a GPU, compute on the CPU, and count who waits for them."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_any, tree_map

GPU = torch.device("cuda")
# What a GPU must finish all its work for, so that Python gets a number or a shape.
_T = torch.Tensor
WAITING = {_T.item, _T.tolist, _T.__bool__, _T.__float__, _T.__int__, _T.__index__, _T.__contains__, _T.numpy, _T.cpu}
WAITING |= {_T.nonzero, torch.nonzero, _T.equal, torch.equal, _T.masked_select, torch.masked_select, torch.allclose}
# What is asked of the pretended device itself.
PLACES = [_T.device.__get__, _T.is_cpu.__get__, _T.is_meta.__get__]


class OnGPU(torch.Tensor):
    """Wraps a CPU tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=GPU
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was called outside of the pretended device")


class PretendedGPU(TorchFunctionMode):
    """While it is on, every function of torch that touches an `OnGPU` runs on the CPU; `waits` counts the readers."""

    def __init__(self):
        super().__init__()
        self.waits = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        mine = tree_any(lambda x: isinstance(x, OnGPU) or (isinstance(x, torch.device) and x == GPU), (args, kwargs))
        if not mine or function in PLACES:
            return function(*args, **kwargs)
        self.waits += function in WAITING
        out = function(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        return tree_map(lambda x: OnGPU(x) if isinstance(x, torch.Tensor) else x, out)


def _inner(x):
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.inner if isinstance(x, OnGPU) else x


def waits_of(run, *tensors):
    """How often `run` waits for the device, given `tensors` on it; and what it returns, on the CPU."""
    with PretendedGPU() as device:
        out = run(*(OnGPU(x) for x in tensors))
    return device.waits, out.inner
