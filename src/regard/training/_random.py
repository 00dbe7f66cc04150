"""Stateless random numbers: functions of a seed and of keys such as epoch and index."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64
_MANY = 1_000_000  # numbers that are shuffled as a whole


def mix(*keys: int) -> int:
    """A number below 2^63 that depends on every one of `keys` and on their order, as a seed.

    >>> mix(1, 2) == mix(1, 2), mix(1, 2) == mix(2, 1)
    (True, False)
    """
    state = 0
    for key in keys:
        state = (state ^ (key & _WORD)) + _STEP & _WORD
        state = (state ^ state >> 30) * _FIRST & _WORD
        state = (state ^ state >> 27) * _SECOND & _WORD
        state ^= state >> 31
    return state >> 1


def generator(*keys: int) -> torch.Generator:
    """A torch generator seeded by `mix(*keys)`.

    >>> torch.equal(torch.rand(3, generator=generator(0, 7)), torch.rand(3, generator=generator(0, 7)))
    True
    """
    return torch.Generator().manual_seed(mix(*keys))


def drawn(count: int, most: int, *keys: int) -> list[int]:
    """At most `most` of the numbers below `count`, each once, in random order, by `generator(*keys)`.

    Of many more than are drawn, without a list of them all.

    >>> sorted(drawn(4, 10, 0)), len(set(drawn(10**9, 1000, 0)))
    ([0, 1, 2, 3], 1000)
    """
    random = generator(*keys)
    if count <= max(_MANY, 2 * most):
        return torch.randperm(count, generator=random)[:most].tolist()
    found: dict[int, None] = {}
    while len(found) < most:
        found |= dict.fromkeys(torch.randint(count, (most,), generator=random).tolist())
    return list(found)[:most]


def uniform(seed: int, index: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) per entry of `index` (B,), independent of the other entries: (B, count).

    >>> both, one = uniform(5, torch.tensor([3, 9]), 4), uniform(5, torch.tensor([9]), 4)
    >>> torch.equal(both[1], one[0])
    True
    """
    sample = _scrambled(index.to(torch.int64) * _signed(_STEP) + _signed(mix(seed)))
    draw = torch.arange(1, count + 1, device=index.device) * _signed(_STEP)
    return (_scrambled(sample.unsqueeze(1) + draw) >> 40 & (1 << 24) - 1).to(torch.float32) * 2.0**-24


def _scrambled(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64, which wraps around; masks make the arithmetic shifts logical."""
    x = (x ^ (x >> 30 & _WORD >> 30)) * _signed(_FIRST)
    x = (x ^ (x >> 27 & _WORD >> 27)) * _signed(_SECOND)
    return x ^ (x >> 31 & _WORD >> 31)


def _signed(x: int) -> int:
    """An unsigned 64-bit number as the int64 with the same bits."""
    return x - (1 << 64) if x >> 63 else x
