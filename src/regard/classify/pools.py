"""The pools of a classifier as values with names.

`str(pool)` is its name in settings, on the command line and in JSON; `parse_pool(name)` is the inverse:

    average           the mean over all cells
    non-local         a non-local block, then the mean
    discrete-softmax, continuous-sparsemax, mixture-2, ...    every kind of attention in `regard.vqa.kinds`

Help and completion of the command line read the lists below: this file imports torch when a pool is first used.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard import _plain
from regard.vqa import kinds
from regard.vqa.kinds import Continuous, Discrete, Kind, MixtureOf


@dataclass(frozen=True)
class Average(Kind):
    """The mean over all cells: nothing is looked at more than anything else.

    >>> print(Average(), "has the label:", Average().label)
    average has the label: average pooling
    """

    @property
    def name(self) -> str:
        """The name."""
        return "average"

    @property
    def label(self) -> str:
        """The name in words."""
        return "average pooling"


@dataclass(frozen=True)
class NonLocalThenAverage(Kind):
    """A non-local block, in which each cell attends to all others, then the mean.

    >>> print(NonLocalThenAverage())
    non-local
    """

    @property
    def name(self) -> str:
        """The name."""
        return "non-local"

    @property
    def label(self) -> str:
        """The name in words."""
        return "non-local block"


POOLS: tuple[Kind, ...] = (
    Average(),
    Discrete("softmax"),
    Discrete("sparsemax"),
    Discrete("entmax"),
    Discrete("tvmax"),
    Continuous("softmax"),
    Continuous("sparsemax"),
    MixtureOf(2),
    NonLocalThenAverage(),
)
"""The pools that help texts offer; `parse_pool` takes any kind of attention."""

POOL_NAMES = tuple(map(str, POOLS))
AVERAGE_NAME = str(Average())
POOL_SPELLINGS = f"{POOL_NAMES[0]}, {POOL_NAMES[-1]}, {kinds.WRITTEN}"
"""All names that `parse_pool` takes, in one line."""


def parse_pool(pool: str | Kind) -> Kind:
    """The pool with a name; a pool is returned unchanged.

    >>> parse_pool("average"), parse_pool("discrete-entmax-1.3")
    (Average(), Discrete(map='entmax-1.3'))
    >>> parse_pool("maximum")
    Traceback (most recent call last):
    ValueError: pool: got 'maximum', expected one of average, non-local, discrete-softmax, ...
    """
    if isinstance(pool, Kind):
        return pool
    own = {str(one): one for one in (Average(), NonLocalThenAverage())}
    value = own.get(str(pool)) or kinds.read_name(str(pool))
    if value is None:
        _plain.complain("pool", repr(pool), f"one of {POOL_SPELLINGS}", "Write one of these.")
    return value
