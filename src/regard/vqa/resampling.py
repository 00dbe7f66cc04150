"""Intervals by drawing pictures again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from regard.swav import Proportion

_DRAWS, _DRAWN_AT_ONCE = 2000, 1 << 22  # resamples; numbers drawn at a time, which bounds the memory


def resampled_interval(
    scores: NDArray[numpy.float64], pictures: Sequence[str], *, lowest: float = 0.0, highest: float = 100.0
) -> tuple[float, float]:
    """The 95 % interval of a mean over questions, by drawing *pictures* again, each with all its questions.

    Questions about one picture are not independent: drawing questions would give too narrow an interval. Pictures that
    all have the same mean tell nothing about the spread: then it is Wilson's interval for as many trials as pictures.

    `scores`: (n,), one per question, from `lowest` to `highest`; default 0 to 100.
    `pictures`: (n,), the picture of each question.

    >>> low, high = resampled_interval(numpy.array([100.0, 0.0] * 50), [str(i) for i in range(100)])
    >>> 38 < low < 42, 58 < high < 62
    (True, True)
    >>> [round(end, 1) for end in resampled_interval(numpy.full(20, 100.0), ["a"] * 10 + ["b"] * 10)]
    [34.2, 100.0]
    """
    numbers = {name: i for i, name in enumerate(dict.fromkeys(pictures))}
    groups = [numbers[name] for name in pictures]
    counts = numpy.bincount(groups)
    sums = numpy.bincount(groups, weights=scores)
    total = len(counts)
    if numpy.ptp(sums / counts) < 1e-9:
        share = (float(scores.mean()) - lowest) / (highest - lowest)
        ends = Proportion(share * total, total).interval
        low, high = (lowest + (highest - lowest) * min(1.0, max(0.0, end)) for end in ends)
        return low, high
    generator = numpy.random.default_rng(0)
    means = []
    rows = max(1, _DRAWN_AT_ONCE // total)
    for start in range(0, _DRAWS, rows):
        drawn = generator.integers(0, total, (min(rows, _DRAWS - start), total))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
    low, high = numpy.quantile(numpy.concatenate(means), (0.025, 0.975)).tolist()
    return low, high
