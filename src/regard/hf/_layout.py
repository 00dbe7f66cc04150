"""What follows the tokens of one attention while a model runs: the base of all layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from regard.hf._tokens import Tokens


class Layout(ABC):
    """The tokens of one attention: `prepare` adds hooks that follow the input, `tokens` answers while it is called."""

    @abstractmethod
    def prepare(self) -> list[Any]:
        """Add hooks; their handles."""

    @abstractmethod
    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """The tokens of the keys: one for all of the batch, or one for each of its samples."""
