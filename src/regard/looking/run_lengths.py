"""Masks as run lengths, as COCO has them: how many pixels are outside, inside, outside, ..., column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def mask_of_runs(counts: Sequence[int] | str, size: Sequence[int]) -> Tensor:
    """The boolean mask (H, W) of run lengths, the first of which is outside; a ValueError if they are of another size.

    `counts`: the lengths, or COCO's string of them.
    `size`: height and width.

    >>> mask_of_runs([1, 2, 1], (2, 2)).tolist()
    [[False, True], [True, False]]
    >>> mask_of_runs("121", (2, 2)).equal(mask_of_runs([1, 2, 1], (2, 2)))
    True
    """
    height, width = (int(side) for side in size)
    given = [*_differences(counts)] if isinstance(counts, str) else [int(n) for n in counts]
    lengths = torch.tensor(given, dtype=torch.int64)
    if int(lengths.sum()) != height * width or bool((lengths < 0).any()):
        raise ValueError(f"run lengths of {int(lengths.sum())} pixels for a size of {height} x {width}")
    inside = torch.arange(len(lengths)) % 2 == 1
    return inside.repeat_interleave(lengths).reshape(width, height).mT


def _differences(text: str) -> Iterator[int]:
    """The lengths in a string, in which each from the fourth on is its difference from the one two before it."""
    lengths: list[int] = []
    for number in _numbers(text):
        lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
        yield lengths[-1]


def _numbers(text: str) -> Iterator[int]:
    """Signed numbers in groups of five bits, the lowest first; a letter is 48, and 32 if more follow, and the bits."""
    number = shift = 0
    for letter in text.encode():
        bits = letter - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{chr(letter)!r} in run lengths")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            yield number - (1 << shift) if bits & 16 else number
            number = shift = 0
    if shift:
        raise ValueError("run lengths that end within a number")
