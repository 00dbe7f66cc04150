"""Small tensors of numbers that are known beforehand."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard import _check


def fixed_numbers(numbers: tuple[Any, ...], like: Tensor) -> Tensor:
    """The numbers, in tuples, as a tensor with the dtype and the device of `like`, which nobody may change.

    A copy of numbers of Python waits for a device, and no graph of CUDA may contain one: there it is made once and
    kept. On a CPU, and where `like` has no values, it is made anew.

    >>> fixed_numbers(((1, 2), (3, 4)), torch.zeros(1))
    tensor([[1., 2.],
            [3., 4.]])
    """
    if _check.readable(like) and not _check.readable_at_once(like):
        return _kept(numbers, like.dtype, like.device)
    return like.new_tensor(numbers)


@lru_cache(maxsize=256)
def _kept(numbers: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)
