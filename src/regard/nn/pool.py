"""Pooling of a set of features into one vector by attention."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from regard import _check
from regard._repr import shown
from regard.attention.arguments import Map
from regard.hub import PretrainedModule
from regard.hub.card import Card
from regard.maps.entmax import softmax
from regard.nn._cards import pool_card
from regard.nn._spelled import read_map, spell_map
from regard.nn.learned import held_map, name_of


class Pooled(NamedTuple):
    """What `AttentionPool` returns: the context (..., out), and its weights (..., glimpses, L).

    >>> pooled = AttentionPool(4, glimpses=2, out=3)(torch.randn(5, 7, 4))
    >>> pooled.context.shape, pooled.weights.shape
    (torch.Size([5, 3]), torch.Size([5, 2, 7]))
    """

    context: Tensor
    weights: Tensor

    def __repr__(self) -> str:
        return shown(self, self._asdict())


class AttentionPool(PretrainedModule):
    """Pool features by weights that an MLP scores and a map normalises: "AttFlat" (4.1).

    Features x (..., L, dim) are scored by Linear, ReLU, dropout, Linear, once per glimpse; `map` turns the scores of
    each glimpse into weights; the expectations of x under them (docs/math.md, step 3) are concatenated and go through
    the output Linear.

    `dim`: width of the features.
    `hidden`: units of the scoring network; default `dim`.
    `glimpses`: number of sets of weights; default 1.
    `out`: width of the output Linear; default None, no such layer: the context has glimpses * dim numbers.
    `dropout`: share of hidden units set to zero in training; default 0.
    `map`: any map, of scores (..., glimpses, 1, L): `regard.sparsemax`, `regard.TVmax(0.1, (14, 14))` for features on a
    grid, `regard.nn.Entmax(glimpses)`; default `softmax`.
    `device`, `dtype`: of the parameters; default torch's.

    `mask` (..., L) is boolean, True where a feature takes part; where none does, the weights are zero and the context
    is the bias of the output Linear. `save_pretrained`, `from_pretrained` and `push_to_hub` follow the conventions of
    the Hugging Face Hub, with regard's maps.

    >>> from regard import sparsemax
    >>> pool = AttentionPool(16, out=32, glimpses=2, map=sparsemax)
    >>> context, weights = pool(torch.randn(3, 10, 16))
    >>> context.shape, weights.shape
    (torch.Size([3, 32]), torch.Size([3, 2, 10]))
    """

    kind: ClassVar[str] = "attention-pool"

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        glimpses: int = 1,
        out: int | None = None,
        dropout: float = 0.0,
        *,
        map: Map = softmax,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layers."""
        super().__init__()
        self.dim, self.glimpses = _check.count("dim", dim), _check.count("glimpses", glimpses)
        hidden = dim if hidden is None else _check.count("hidden", hidden)
        self.map = held_map(map)
        self.score = nn.Sequential(
            nn.Linear(dim, hidden, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Dropout(_check.share("dropout", dropout)),
            nn.Linear(hidden, glimpses, device=device, dtype=dtype),
        )
        self.merge = (
            nn.Identity()
            if out is None
            else nn.Linear(glimpses * dim, _check.count("out", out), device=device, dtype=dtype)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Pooled:
        """Context (..., out) and weights (..., glimpses, L) of features x (..., L, dim)."""
        _check.floating("x", x, min_dims=2)
        if x.shape[-1] != self.dim:
            _check.complain("x", f"width {x.shape[-1]}", f"{self.dim}", "Features lie along the last axis.")
        _check.finite("x", x)
        if mask is not None:
            _check.boolean_mask(mask, x.shape[:-1], "x without its last axis")
            mask = mask[..., None, None, :]
        # A glimpse is a head with one query, so that a map with one parameter per head has one per glimpse.
        p = self.map(self.score(x).mT.unsqueeze(-2), mask=mask)
        weights = (p if isinstance(p, Tensor) else p.weights).squeeze(-2)
        c = weights.to(x.dtype) @ x
        return Pooled(self.merge(c.flatten(-2)), weights)

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The README.md of this pool, under the name that it is loaded by."""
        grid = getattr(self.map, "shape", None) or (196,)
        return pool_card(self, name, f"torch.randn(1, {math.prod(grid)}, {self.dim})", license)

    def _hub_settings(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "hidden": self.score[0].out_features,
            "glimpses": self.glimpses,
            "out": getattr(self.merge, "out_features", None),
            "dropout": self.score[2].p,
            "map": spell_map(self.map),
        }

    @classmethod
    def _from_hub_settings(cls, settings: dict[str, Any]) -> Self:
        names = ("dim", "hidden", "glimpses", "out", "dropout")
        return cls(**{name: settings[name] for name in names}, map=read_map(settings["map"]))

    def extra_repr(self) -> str:
        """The map, where it is not a child module."""
        return "" if isinstance(self.map, nn.Module) else f"map={name_of(self.map)}"
