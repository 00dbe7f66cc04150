"""A picture as something looks at it: the scores of one place on all patches, in every layer and head."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard.hf import Recording, Seen
from regard.patches.photograph import describe_patches, patch_grid

PicturePlace = tuple[float, float]  # across and down, both from 0 to 1


class HeadScores(NamedTuple):
    """What one query thinks of the patches, by head.

    `scores`: (H, h, w), up to a constant per head; -inf for patches that it does not see.
    `weights`: (H, h, w), those of the model; what they lack of one is on tokens that are no patches.
    """

    scores: Tensor
    weights: Tensor


class View(ABC):
    """A picture that can be asked what one of its places looks at."""

    #: By the name of a map that the whole model was run with, "model" for its own: the likeliest classes.
    answers: dict[str, float]

    @property
    @abstractmethod
    def layers(self) -> list[str]:
        """The name of each layer."""

    @property
    @abstractmethod
    def has_class_token(self) -> bool:
        """Whether a query can be the class token."""

    @abstractmethod
    def head_scores(self, layer: int, place: PicturePlace | None) -> HeadScores:
        """What a place of the picture thinks of all patches.

        `layer`: its number.
        `place`: across and down, from 0 to 1; None for the class token, or the middle where there is none.
        """


@final
@dataclass(frozen=True)
class PatchView(View):
    """A picture without a model: patches look at each other by their colours.

    `features`: (h, w, d), of unit length.
    `scale`: of their inner products; default 1.
    """

    features: Tensor
    scale: float = 1.0
    answers: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, picture: Tensor) -> PatchView:
        """That of a picture (3, H, W) in bytes.

        >>> PatchView.of(torch.zeros(3, 40, 60, dtype=torch.uint8)).features.shape
        torch.Size([20, 30, 3])
        """
        grid = patch_grid(picture.shape[-2], picture.shape[-1])
        return cls(describe_patches(picture.float() / 255, grid).unflatten(0, grid))

    @property
    def layers(self) -> list[str]:
        """One."""
        return ["colours of patches"]

    @property
    def has_class_token(self) -> bool:
        """There is none."""
        return False

    def head_scores(self, layer: int, place: PicturePlace | None) -> HeadScores:
        """Of one head."""
        row, column = cell_at(place, self.features.shape[:2])
        scores = self.scale * (self.features @ self.features[row, column])[None]
        return HeadScores(scores, scores.flatten(1).softmax(-1).view_as(scores))


@final
@dataclass(frozen=True)
class ModelView(View):
    """A picture that a model has seen, with queries and keys kept.

    `seen`: what every attention did.
    """

    seen: Recording
    answers: dict[str, float] = field(default_factory=dict)

    @property
    def layers(self) -> list[str]:
        """The names of its attentions."""
        return [calls[0].name for calls in self.seen.layers]

    @property
    def has_class_token(self) -> bool:
        """Whether one of the layers has one."""
        return any(one.tokens.places("cls") for one in self.seen)

    @property
    def bytes(self) -> int:
        """The size of the kept queries and keys, about."""
        return sum(4 * 2 * 64 * math.prod(one.weights.shape[:-1]) for one in self.seen if one.weights is not None)

    def head_scores(self, layer: int, place: PicturePlace | None) -> HeadScores:
        """From the queries and keys of that layer; of weights that the model has formed, their logarithm."""
        one, batch, query = _query_of(self.seen.layers[layer], place)
        weights: Any = one.weights
        if isinstance(weights, Tensor):
            p = weights[batch, :, query]
            return HeadScores(_on_grid(one, p.log(), batch, -math.inf), _on_grid(one, p, batch, 0.0))
        s = weights.with_map(_keep_scores).rows([query])[batch, :, 0]
        p = weights.rows([query])[batch, :, 0]
        return HeadScores(_on_grid(one, s, batch, -math.inf), _on_grid(one, p, batch, 0.0))


def cell_at(place: PicturePlace | None, grid: tuple[int, ...]) -> tuple[int, int]:
    """Row and column of the cell at a place; of None the middle.

    >>> cell_at((0.99, 0.0), (4, 6)), cell_at((1.0, 1.0), (4, 6)), cell_at(None, (4, 6))
    ((0, 5), (3, 5), (2, 3))
    """
    across, down = (0.5, 0.5) if place is None else place
    return min(int(down * grid[0]), grid[0] - 1), min(int(across * grid[1]), grid[1] - 1)


def _keep_scores(s: Tensor, *, mask: Tensor | None) -> Tensor:
    """In place of a map: the scores, -inf where a query does not see a key."""
    return s if mask is None else s.masked_fill(~mask, -math.inf)


def _query_of(calls: Sequence[Seen], place: PicturePlace | None) -> tuple[Seen, int, int]:
    """The call that has the query, where windows have one each, its index along the batch, and along the queries."""
    for one in calls:
        if one.weights is not None and one.weights.shape[-2] == 1:  # the one query of a pooling head is for all places
            return one, 0, 0
        tokens = one.tokens
        if place is None and (special := tokens.places("cls")):
            return one, 0, special[0]
        windows = 1 if tokens.windows is None else tokens.windows.count
        numbers = torch.arange(1, 1 + windows * tokens.length, dtype=torch.float64).reshape(windows, tokens.length)
        numbers = tokens.pictures(numbers)[0]  # zero outside of the call
        row, column = cell_at(place, tuple(numbers.shape))
        if numbers[row, column] > 0:
            return one, *divmod(int(numbers[row, column]) - 1, tokens.length)
    raise ValueError(f"place: got {place}, expected one in a window of {calls[0].name}.")


def _on_grid(one: Seen, values: Tensor, batch: int, elsewhere: float) -> Tensor:
    """Values of the keys of one query (H, Lk) on the picture (H, h, w); outside of its window `elsewhere`."""
    if one.tokens.windows is None:
        inside = one.tokens.pictures(torch.ones_like(values[:1], dtype=torch.bool))
        return one.tokens.pictures(values).masked_fill(~inside, elsewhere)
    all_windows = values.new_full((one.tokens.windows.count, *values.shape), elsewhere)
    all_windows[batch] = values
    return one.tokens.pictures(all_windows)[0]
