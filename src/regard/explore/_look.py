"""Look: what one place of a picture looks at, under every map, in every layer and head, for the page."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from regard._problem import Problem
from regard._rounded import rounded
from regard.explore._requests import Columns, LookAt
from regard.looking.maps_side_by_side import maps_of, measure_weights, region_on_grid
from regard.looking.model import LookingModel
from regard.looking.views import HeadScores, ModelView, PatchView, View, cell_at
from regard.vqa.attention_quality import half_area
from regard.vqa.resampling import resampled_interval

KEPT_BYTES, KEPT_VIEWS = 256_000_000, 32  # of queries and keys of pictures that were looked at; how many pictures
SMALL = 16  # cells along a side of the small pictures of layers and heads, at most
OWN = "model"  # the name of the model's own map


class Looking:
    """Looks at pictures, with a model or by the colours of patches; from several threads, which share the model."""

    def __init__(self, model: LookingModel | None = None, name: str = "") -> None:
        """`model` and its name on the page; default none: patches and their colours."""
        self.model, self.name = model, name
        self._views: OrderedDict[tuple[str, str], View] = OrderedDict()
        self._lock = threading.Lock()  # one run of the model at a time: another may exchange its map

    def describe(self) -> dict[str, Any]:
        """What the page is told at the start."""
        return {"model": self.name if self.model else None}

    def look(self, picture: Callable[[], Tensor], key: str, request: LookAt) -> dict[str, Any]:
        """Everything that the page draws of one picture.

        `picture`: reads it, (3, H, W) in bytes, if it has not been looked at before.
        `key`: the same for the same picture.
        `request`: the place, the layer and head, the maps, the region.
        """
        views = {OWN: self._view(picture, key, OWN)}
        if request.exchange and self.model is not None:
            name = f"entmax-{request.alpha:g}"
            views[name] = self._view(picture, key, name)
        view = views[OWN]
        if isinstance(view, PatchView):
            view = replace(view, scale=request.scale)
        layer = len(view.layers) - 1 if request.layer == -1 else min(request.layer, len(view.layers) - 1)
        chosen = view.head_scores(layer, request.place)
        head = None if request.head is None else min(request.head, len(chosen.scores) - 1)
        return {
            "grid": list(chosen.scores.shape[1:]),
            "cell": self._cell(view, request, chosen),
            "layer": layer,
            "head": head,
            "heads": len(chosen.scores),
            "layers": view.layers,
            "class_token": view.has_class_token,
            "elsewhere": rounded(max(0.0, 1 - float(_of_head(chosen.weights, head).sum((1, 2)).mean()))),
            "maps": _panels(_of_head(chosen.scores, head), request),
            "multiples": {name: _multiples(one, request) for name, one in views.items()} if self.model else {},
            "answers": {name: one.answers for name, one in views.items() if one.answers},
        }

    def _cell(self, view: View, request: LookAt, chosen: HeadScores) -> list[int] | None:
        """Row and column of the query; None for the class token."""
        if request.place is None and view.has_class_token:
            return None
        return list(cell_at(request.place, tuple(chosen.scores.shape[1:])))

    def _view(self, picture: Callable[[], Tensor], key: str, map: str) -> View:
        with self._lock:
            view = self._views.pop((key, map), None)
            if view is None:
                view = self._made(picture(), None if map == OWN else map)
            self._views[key, map] = view
            while len(self._views) > KEPT_VIEWS or (len(self._views) > 1 and self._bytes() > KEPT_BYTES):
                self._views.popitem(last=False)
            return view

    def _made(self, picture: Tensor, map: str | None) -> View:
        if self.model is None:
            return PatchView.of(picture)
        with self.model.exchanged(map):
            return self.model.view(picture)

    def _bytes(self) -> int:
        return sum(view.bytes for view in self._views.values() if isinstance(view, ModelView))


def key_of(file: bytes) -> str:
    """A name for an uploaded file."""
    return hashlib.sha256(file).hexdigest()


def read_view(text: str) -> LookAt:
    """The request in a form's field."""
    from pydantic import ValidationError

    try:
        return LookAt.model_validate_json(text or "{}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "view"
        raise Problem(f"{where[:100]}: {first['msg']}.") from error


def means(request: Columns) -> dict[str, Any]:
    """The mean of each column with its 95 % interval, by drawing pictures again."""
    made = {}
    for name, column in request.columns.items():
        values = numpy.asarray(column, dtype=numpy.float64)
        low, high = resampled_interval(values, [str(i) for i in range(len(values))], highest=1.0)
        made[name] = {"mean": rounded(float(values.mean())), "low": rounded(low), "high": rounded(high)}
    return made


def _of_head(x: Tensor, head: int | None) -> Tensor:
    """(H, h, w), of all heads or of one."""
    return x if head is None else x[head : head + 1]


def _panels(scores: Tensor, request: LookAt) -> list[dict[str, Any]]:
    """What the page draws for each map."""
    grid = (scores.shape[1], scores.shape[2])
    region = region_on_grid(request.outline, grid) if len(request.outline) > 2 else None
    panels = []
    for label, weights in maps_of(scores, request.alpha, request.gamma).items():
        numbers = {
            name: None if x is None else rounded(x) for name, x in asdict(measure_weights(weights, region)).items()
        }
        half = rounded(float(half_area(weights[None])))
        panels.append({"label": label, "weights": rounded(weights), "half": half, **numbers})
    return panels


def _multiples(view: View, request: LookAt) -> list[list[Any]]:
    """By layer and head, small: multiples of an even spread over the patches, as the model weighs them."""
    made = []
    for layer in range(len(view.layers)):
        weights = view.head_scores(layer, request.place).weights
        height, width = weights.shape[1:]
        small = torch.nn.functional.adaptive_avg_pool2d(weights, (min(height, SMALL), min(width, SMALL)))
        made.append([[[round(x, 3) for x in row] for row in head] for head in (height * width * small).tolist()])
    return made
