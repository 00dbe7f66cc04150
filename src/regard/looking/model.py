"""A model of Hugging Face that looks at a picture, whatever it wants beside it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard._problem import Problem
from regard.affinity import Dot
from regard.attention.arguments import Map
from regard.hf import Recording, register
from regard.hf._attention import attention, output_recorder
from regard.hf._masks import float_mask
from regard.looking.views import ModelView
from regard.maps._value import MapValue
from regard.maps.gates import Inverse
from regard.maps.mean import Mean
from regard.maps.spelling import as_map, parse_map
from regard.maps.tvmax import TVmax

_EXCHANGED = "regard_exchanged"  # the attn_implementation of a model whose map is another than its own
_NO_EXCHANGE: dict[type, str] = {
    Mean: "its weights may be negative, and have no entropy",
    Inverse: "it is for distances, and scores of a model are inner products",
    TVmax: "it is for patches alone, and a model has other tokens beside them",
}
LIKELIEST = 5  # classes or words that are named


def map_to_exchange(name: str, *, causal: bool = False) -> MapValue:
    """The map of a name that a model can be run with in place of its own; an error in one line for any other.

    `causal`: whether the model is one of text, whose words see those before them alone; default False.

    >>> map_to_exchange("entmax-1.3")
    Entmax(alpha=1.3)
    """
    try:
        map = parse_map(name, (1, 2))
        map(torch.zeros(1, 2))  # its parameters may be out of bounds
    except ValueError as error:
        raise Problem(f"--map {name}: {error}") from error
    reason = _NO_EXCHANGE.get(type(map))
    if map.couples_rows and causal:
        reason = "its weights depend on words that come later"
    if reason is not None:
        raise Problem(f"--map {name}: {reason}. Take softmax, sparsemax, entmax-ALPHA, normmax-ALPHA or gate.")
    return map


class LookingModel(ABC):
    """A model that takes a picture whole, and can be watched."""

    #: The token whose weights are drawn: a kind, or places in the sequence.
    query: ClassVar[str | Sequence[int]] = "cls"
    model: Any

    @abstractmethod
    def run(self, picture: Tensor, **how: Any) -> tuple[Recording, dict[str, float]]:
        """What every attention saw of a picture (3, H, W) in bytes, and the likeliest answers with their shares.

        `how`: arguments of `regard.hf.watch`.
        """

    def view(self, picture: Tensor) -> ModelView:
        """A picture (3, H, W) in bytes, to be asked what its places look at; only layers that see patches."""
        seen, answers = self.run(picture, want=[], keep=True)
        shown = Recording([one for one in seen if one.tokens.grid is not None])
        if not shown:
            raise Problem("no attention of this model sees patches of a picture: there is nothing to draw.")
        return ModelView(shown, answers)

    @contextmanager
    def exchanged(self, map: Map | str | None) -> Iterator[None]:
        """Give every attention of the model another map of its scores inside the block; its weights stay.

        `map`: a value or a name such as "entmax-1.5"; None leaves the model's own.
        """
        if map is None:
            yield
            return
        from transformers import AttentionInterface, AttentionMaskInterface

        register()
        function = functools.partial(attention, Dot, as_map(map), recorder=output_recorder())
        AttentionInterface.register(_EXCHANGED, function)
        AttentionMaskInterface.register(_EXCHANGED, float_mask)
        own = self.model.config._attn_implementation
        self.model.set_attn_implementation(_EXCHANGED)
        try:
            yield
        finally:
            self.model.set_attn_implementation(own)
