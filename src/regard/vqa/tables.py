"""Tables of results with confidence intervals, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# Student's t at 97.5 %, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds, and the half width of its 95 % confidence interval (Student's t); NaN for one seed.

    >>> interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, math.nan
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, (_T[n - 2] if n - 2 < len(_T) else 1.96) * deviation / math.sqrt(n)


def cell(values: Sequence[float], digits: int = 1) -> str:
    """A mean and its interval as text, NaN left out; "-" for no values.

    >>> cell([80.0, 82.0, 84.0]), cell([80.0]), cell([])
    ('82.0 ± 5.0', '80.0', '-')
    """
    numbers = [v for v in values if not math.isnan(v)]
    if not numbers:
        return "-"
    mean, half = interval(numbers)
    return f"{mean:.{digits}f}" + ("" if math.isnan(half) else f" ± {half:.{digits}f}")


def table(title: str, rows: Mapping[str, Mapping[str, str]], first: str = "") -> str:
    """A table as text: `rows` by label, each with cells by column name; `first` is the header of the labels.

    >>> print(table("T", {"a": {"x": "1", "y": "2"}, "b": {"x": "3"}}))
    T
         x  y
    a    1  2
    b    3  -
    """
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [[first, *names]] + [[label, *(row.get(name, "-") for name in names)] for label, row in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names) + 1)]
    widths[0] = max(widths[0], 3)
    text = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    ]
    return "\n".join([title, *text])
