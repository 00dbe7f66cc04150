"""The interface of the algorithms of `attend`: does it suit a call, what does it cost, what is the context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from regard.attention.call import Call


@dataclass(frozen=True)
class Plan:
    """Which algorithm `attend` uses (4.2 to 4.7), its cost, and why. `rows` is the number of queries in a block.

    >>> import torch, regard
    >>> x = torch.zeros(1, 4096, 8)
    >>> regard.explain_attend(x, x, x, map="mean").algorithm
    'associative'
    """

    algorithm: str
    how: str
    time: str
    memory: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.how}; time {self.time}, memory {self.memory}"


class Algorithm(ABC):
    """One exact way to compute the context of a call. It has no state: all it needs is in the call."""

    @abstractmethod
    def suits(self, call: Call) -> bool:
        """Whether it can compute the call, and is worth it."""

    @abstractmethod
    def cost(self, call: Call) -> Plan:
        """Time and memory for a call that it suits, and in how many blocks."""

    @abstractmethod
    def compute(self, call: Call) -> Tensor | None:
        """The context of a call that it suits; None if the values turn out not to suit it."""

    def lacks(self, call: Call) -> str | None:
        """A text with the only reason why it does not suit a call; None if there are others, or it does."""
        return None
