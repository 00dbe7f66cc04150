"""How well a classifier names the classes of held-out pictures, and where it looks, beside what needs no looking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from regard.classify.pools import AVERAGE_NAME, parse_pool
from regard.swav import Proportion

LOOK_MEASURES = ("mass", "pointing", "divergence")  # of an attention against a region


@dataclass(frozen=True)
class Estimated:
    """A mean with its 95 % interval.

    >>> print(Estimated(0.921, 0.9, 0.94))
    0.92 (0.90 to 0.94)
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class PoolResult:
    """A pool on held-out pictures.

    right       how many of them are named right
    by_class    the same, of each class in order
    difference  its accuracy less that of average pooling, in points; None for average pooling itself
    looks       `mass`, `pointing` and `divergence` against the masks; empty without masks
    seconds     of its training; None if a part of it was run before, in a process that was stopped

    >>> PoolResult(9, (4, 5), None, {}, 1.5).right
    9
    """

    right: int
    by_class: tuple[int, ...]
    difference: Estimated | None
    looks: dict[str, Estimated]
    seconds: float | None


@dataclass(frozen=True)
class ClassifierSummary:
    """How well a classifier does on pictures that it did not learn from.

    data                  the name of the pictures
    classes               their names
    learned, tested       pictures that were learned from, and held-out ones of each class
    drawn                 whether these were drawn from those given
    commonest             held-out pictures of the class that is commonest among those learned from
    pool                  the one that was asked for; `results` has it, average pooling, and those trained before
    blind                 what attention has that does not look: the same measures, by name
    area                  the share of the picture that its object takes, which is chance; None without masks
    masks                 held-out pictures that have one
    backbone, untrained   in words, and whether its weights are random
    left_out              sentences on pictures that were not counted

    >>> results = {"average": PoolResult(9, (4, 5), None, {}, None)}
    >>> summary = ClassifierSummary("pets", ("cat", "dog"), 40, (5, 5), True, 5, "average", results)
    >>> summary.sentence
    'Of 100 new pictures it names 90 right (60 to 98); with the commonest class one gets 50.'
    >>> ClassifierSummary.from_json(summary.to_json()) == summary
    True
    """

    data: str
    classes: tuple[str, ...]
    learned: int
    tested: tuple[int, ...]
    drawn: bool
    commonest: int
    pool: str
    results: dict[str, PoolResult]
    blind: dict[str, dict[str, float]] = field(default_factory=dict)
    area: float | None = None
    masks: int = 0
    backbone: str = ""
    untrained: bool = False
    left_out: tuple[str, ...] = ()

    def accuracy(self, pool: str | None = None) -> Proportion:
        """That of a pool; default the one that was asked for."""
        return Proportion(self.results[pool or self.pool].right, sum(self.tested))

    @property
    def sentence(self) -> str:
        """The accuracy, its interval, and what to compare it with, in words."""
        accuracy, count = self.accuracy(), sum(self.tested)
        low, high = (100 * end for end in accuracy.interval)
        digits = 0 if high - low >= 3 else 1
        text = f"Of 100 new pictures it names {100 * accuracy.share:.{digits}f} right ({low:.{digits}f} to "
        text += f"{high:.{digits}f}); with the commonest class one gets {100 * self.commonest / count:.{digits}f}"
        if self.pool != AVERAGE_NAME and AVERAGE_NAME in self.results:
            text += f", with average pooling {100 * self.accuracy(AVERAGE_NAME).share:.{digits}f}"
        return f"{text}."

    def table(self) -> str:
        """The result as text: a line for each pool, and for what does not look."""
        head = f"{'':<22}{'accuracy':<24}{'against average':<24}" + "".join(f"{m:<12}" for m in self._measures)
        lines = [head]
        for name, result in self.results.items():
            beside = "" if result.difference is None else in_points(result.difference)
            looks = "".join(f"{result.looks[m].mean:<12.2f}" if m in result.looks else " " * 12 for m in self._measures)
            lines.append(f"{parse_pool(name).label:<22}{self.accuracy(name)!s:<24}{beside:<24}{looks}")
        lines.append(f"{'commonest class':<22}{Proportion(self.commonest, sum(self.tested))}")
        for name, means in self.blind.items():
            lines.append(f"{name:<22}{'':<48}" + "".join(f"{means[m]:<12.2f}" for m in self._measures))
        held_out = "drawn" if self.drawn else "given"
        counted = f"{self.learned} pictures of {len(self.classes)} classes to learn from, {sum(self.tested)} held out"
        lines.append(f"{counted} ({held_out}); 95 % intervals")
        if self.area is not None:
            lines.append(f"objects take {100 * self.area:.0f} % of the picture, by {self.masks} masks")
        return "\n".join(line.rstrip() for line in lines)

    @property
    def _measures(self) -> tuple[str, ...]:
        return LOOK_MEASURES if self.area is not None else ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; a KeyError or TypeError if it is something else."""
        content = dict(written)
        content["results"] = {name: _result(result) for name, result in content["results"].items()}
        for name in ("classes", "tested", "left_out"):
            content[name] = tuple(content[name])
        return cls(**content)


def in_points(difference: Estimated) -> str:
    """A difference of accuracies in points, with its interval.

    >>> in_points(Estimated(-1.13, -2.0, -0.3))
    '-1.1 (-2.0 to -0.3)'
    """
    return f"{difference.mean:+.1f} ({difference.low:+.1f} to {difference.high:+.1f})"


def _result(written: Mapping[str, Any]) -> PoolResult:
    difference = written["difference"]
    return PoolResult(
        int(written["right"]),
        tuple(map(int, written["by_class"])),
        None if difference is None else Estimated(**difference),
        {name: Estimated(**look) for name, look in written["looks"].items()},
        written["seconds"],
    )
