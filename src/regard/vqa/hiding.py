"""Hiding cells of a picture from a model: in its pixels, by the picture's mean or by a blur, or in its stored features.

Legend: M ways to hide, h x w cells, D width of a feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from regard import _plain
from regard._problem import Problem
from regard.backbones import Backbone
from regard.pictures import read
from regard.vqa.feature_store import FeatureStore
from regard.vqa.grids import grids
from regard.vqa.hide_names import HIDE_NAMES, HideName
from regard.vqa.pointing import cell_of
from regard.vqa.records import Records

if TYPE_CHECKING:
    from regard.vqa.store import Run

_AT_ONCE = 8  # pictures per pass of a backbone: on a CPU more only take fresh memory
_SAMPLE = 256  # pictures that the mean feature is taken over


class Hiding(ABC):
    """A way to hide cells; `about` says in words what takes their place."""

    about: str

    @abstractmethod
    def __call__(self, picture: str, kept: Tensor) -> Tensor:
        """The features (M, h, w, D) of a picture by its name, seen through masks (M, h, w), True = the cell is kept."""


class HidePixels(Hiding):
    """Cells hidden in the picture, whose features are made anew: what lies under a cell is gone for all others too.

    `pictures`: the files by name, or pictures (3, H, W) uint8.
    `backbone`: put into evaluation mode.
    `how`: "mean", the mean colour of the picture, or "blur", the picture blurred by a Gaussian as wide as a cell.
    `stages`: whether features are the maps of all stages, as in `grids`; default False.

    >>> from regard.backbones import make_backbone
    >>> backbone = make_backbone("small", size=16, widths=[4], depths=[1])
    >>> hide = HidePixels({"a": torch.zeros(3, 16, 16, dtype=torch.uint8)}, backbone, "mean")
    >>> hide("a", torch.ones(2, 16, 16, dtype=torch.bool)).shape
    torch.Size([2, 16, 16, 4])
    """

    def __init__(
        self, pictures: Mapping[str, Path | Tensor], backbone: Backbone, how: HideName, *, stages: bool = False
    ) -> None:
        """Keep the parts; pictures are read when they are asked for."""
        _plain.choice("how", how, ("mean", "blur"))
        self.pictures, self.backbone, self.how, self.stages = pictures, backbone.eval(), how, stages
        self.about = f"in the picture, by its {'mean' if how == 'mean' else 'blur'}"

    @torch.no_grad()
    def __call__(self, picture: str, kept: Tensor) -> Tensor:
        """See `Hiding`. Features are rounded as stored ones are."""
        source = self.pictures[picture]
        device = next(self.backbone.parameters()).device
        whole = self.backbone.prepare((source if isinstance(source, Tensor) else read(source))[None]).to(device)
        instead = _substitute(whole, self.how, (kept.shape[1], kept.shape[2]))
        rows, columns = (cell_of(n, c) for n, c in zip(whole.shape[-2:], kept.shape[1:], strict=True))
        parts = []
        for few in kept.split(_AT_ONCE):
            pixels = few[:, rows][:, :, columns].unsqueeze(1).to(device)
            parts.append(grids(self.backbone, torch.where(pixels, whole, instead), self.stages).half().float())
        return torch.cat(parts)


class HideFeatures(Hiding):
    """Cells hidden in the stored features, by the mean feature of all pictures.

    What lies under a cell is gone from its own feature alone: the backbone has carried it into the neighbours'.
    """

    about = "in the stored features, by their mean"

    def __init__(self, store: FeatureStore) -> None:
        """Take the mean over some pictures of the store."""
        self.store = store
        self.mean = store.sample(_SAMPLE).flatten(0, -2).mean(0)

    def __call__(self, picture: str, kept: Tensor) -> Tensor:
        """See `Hiding`."""
        return torch.where(kept.unsqueeze(-1).cpu(), self.store[[picture]], self.mean)


def choose_hiding(run: Run, records: Records, store: FeatureStore, how: HideName | None = None) -> Hiding:
    """A way to hide cells of the pictures of records from the model of a run.

    `run`: its backbone makes features of pictures with hidden parts.
    `records`: with the files of their pictures.
    `store`: the stored features.
    `how`: default None: "mean", or "features" if the backbone or a picture is not at hand. If it is named, what is
        missing is a Problem.
    """
    if how is not None:
        _plain.choice("hide", how, HIDE_NAMES)
    if how == "features":
        return HideFeatures(store)
    try:
        for record in records.records:
            if not records.pictures[record.picture].is_file():
                raise Problem(f"{records.pictures[record.picture]} is not there")
        return HidePixels(records.pictures, run.load_backbone(), how or "mean", stages=run.features.stages)
    except (Problem, KeyError) as error:
        if how is None:
            return HideFeatures(store)
        raise Problem(f"cells cannot be hidden in pictures ({error}). Hide them in the features: features") from error


def _substitute(whole: Tensor, how: HideName, cells: tuple[int, int]) -> Tensor:
    """What is seen in place of the hidden part of a picture (1, 3, H, W)."""
    if how == "mean":
        return whole.mean((-2, -1), keepdim=True).expand_as(whole)
    height, width = whole.shape[-2:]
    blurred = whole
    for dim, deviation in ((-2, height / cells[0]), (-1, width / cells[1])):
        blurred = _blurred(blurred, dim, deviation)
    return blurred


def _blurred(x: Tensor, dim: int, deviation: float) -> Tensor:
    """A picture (1, 3, H, W) blurred by a Gaussian along one side, the border repeated beyond it."""
    reach = max(1, round(2 * deviation))
    at = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    kernel = (-0.5 * (at / deviation).square()).exp()
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1) if dim == -2 else (kernel / kernel.sum()).view(1, 1, 1, -1)
    border = (0, 0, reach, reach) if dim == -2 else (reach, reach, 0, 0)
    channels = pad(x, border, mode="replicate").transpose(0, 1)
    return conv2d(channels, kernel).transpose(0, 1)
