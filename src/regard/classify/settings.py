"""The settings of a classifier: its pool, and how it is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from regard import _plain
from regard.classify.pools import POOL_NAMES, POOL_SPELLINGS, parse_pool
from regard.training._setting import setting


@dataclass(frozen=True)
class ClassifierSettings:
    """All settings that decide the result of training a classifier on stored features.

    >>> ClassifierSettings(pool="discrete-entmax-1.50").pool
    'discrete-entmax'
    """

    pool: str = setting(
        f"How the cells of a picture become one vector: {POOL_SPELLINGS}.", "continuous-softmax", suggest=POOL_NAMES
    )
    hidden: int = setting(
        "Units of the network that scores cells, and channels inside a non-local block.", 32, at_least=1
    )
    largest: float = setting(
        "The largest weight that one cell can have, which keeps attention from shrinking to a few cells; 1: no bound.",
        0.25,
        at_least=0,
    )
    dropout: float = setting(
        "Share of the numbers of a pooled vector that are set to zero in training.", 0.0, at_least=0
    )
    lr: float = setting("The learning rate at the start; it falls to 0 along a cosine.", 1e-3, at_least=0)
    weight_decay: float = setting("Weight decay of all matrices.", 0.01, at_least=0)
    epochs: int = setting(
        "Passes over the pictures that are learned from; 0 chooses 15 or more, for 1,000 steps.", 0, at_least=0
    )
    batch_size: int = setting("Pictures per batch.", 64, at_least=1)
    held_out: float = setting(
        "Share of each class that is held out to evaluate on, where the data have no folders train and val.", 0.2
    )
    seed: int = setting("Seed of all random numbers: held-out pictures, order, weights.", 0)

    def __post_init__(self) -> None:
        """Check the values, and write the name of the pool in its standard form."""
        object.__setattr__(self, "pool", str(parse_pool(self.pool)))
        _plain.count("hidden", self.hidden)
        if not 0 < _plain.number("largest", self.largest) <= 1:
            _plain.complain("largest", self.largest, "a weight above 0 and at most 1", "1 leaves scores free.")
        _plain.share("dropout", self.dropout)
        _plain.number("lr", self.lr, above=0)
        _plain.number("weight_decay", self.weight_decay, at_least=0)
        _plain.count("epochs", self.epochs, at_least=0)
        _plain.count("batch_size", self.batch_size)
        if not 0 < _plain.number("held_out", self.held_out) < 1:
            _plain.complain("held_out", self.held_out, "a share between 0 and 1", "A fifth is 0.2.")

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)
