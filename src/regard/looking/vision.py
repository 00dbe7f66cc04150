"""Vision models: pictures of one size, or as many patches as a picture has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from regard._problem import Problem
from regard.hf import Recording, watch
from regard.looking.model import LIKELIEST, LookingModel

GREY = (0.5, 0.5, 0.5)
_TOWERS = ("vision_model", "vision_tower", "visual")


def tower_of(model: Any) -> Any:
    """The part of a model that sees pictures; the model itself, if it sees nothing else."""
    return next((tower for name in _TOWERS if (tower := getattr(model, name, None)) is not None), model)


@final
@dataclass(frozen=True)
class VisionModel(LookingModel):
    """A model and how it wants its pictures: height and width in pixels, mean and standard deviation of the colours."""

    model: Any
    size: tuple[int, int]
    mean: tuple[float, ...] = GREY
    std: tuple[float, ...] = GREY

    @classmethod
    def of(cls, model: Any, mean: tuple[float, ...] = GREY, std: tuple[float, ...] = GREY) -> VisionModel:
        """A model in memory; of one with a tower for text, the tower for pictures."""
        model = tower_of(model).eval()
        size, channels = getattr(model.config, "image_size", None), getattr(model.config, "num_channels", 3)
        kind = getattr(model.config, "model_type", type(model).__name__)
        if size is None:
            raise Problem(f"{kind} is not a model of pictures: its configuration has no image_size.")
        if channels != 3:
            raise Problem(f"this {kind} takes pictures of {channels} channels; regard look gives red, green and blue.")
        try:
            watch(model)
        except ValueError as error:
            raise Problem(f"regard look cannot watch {kind}: {error}") from error
        height, width = (size, size) if isinstance(size, int) else size
        return cls(model, (int(height), int(width)), mean, std)

    def pixels(self, picture: Tensor) -> Tensor:
        """A picture (3, H, W) in bytes as the model takes it, (1, 3, h, w): resized from edge to edge, not cropped."""
        x = resized(picture, self.size)[None]
        mean, std = (torch.tensor(c).reshape(1, 3, 1, 1) for c in (self.mean, self.std))
        return ((x - mean) / std).to(self.model.dtype)

    def run(self, picture: Tensor, **how: Any) -> tuple[Recording, dict[str, float]]:
        """What every attention saw of a picture, and the likeliest classes with their shares, if it has classes."""
        with torch.no_grad(), watch(self.model, **how) as seen:
            out = self.model(self.pixels(picture))
        logits = getattr(out, "logits", None)
        if logits is None:
            return seen, {}
        top = logits[0].float().softmax(-1).topk(min(LIKELIEST, logits.shape[-1]))
        names = self.model.config.id2label
        return seen, {str(names[int(i)]): float(p) for p, i in zip(top.values, top.indices, strict=True)}


@final
@dataclass(frozen=True)
class PatchTower(LookingModel):
    """A vision tower that takes as many patches as a picture has, as those of Qwen do, and what cuts them."""

    model: Any
    image_processor: Any

    def run(self, picture: Tensor, **how: Any) -> tuple[Recording, dict[str, float]]:
        """What every attention saw of a picture; a tower has no classes."""
        patches = self.image_processor(images=[as_image(picture)], return_tensors="pt")
        with torch.no_grad(), watch(self.model, **how) as seen:
            self.model(patches["pixel_values"].to(self.model.dtype), grid_thw=patches["image_grid_thw"])
        return seen, {}


def resized(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """A picture (3, H, W) in bytes at another height and width, from edge to edge, from 0 to 1."""
    x = picture[None].float() / 255
    return torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True, align_corners=False)[0]


def as_image(picture: Tensor) -> Any:
    """A picture (3, H, W) in bytes as processors of transformers take it."""
    from PIL import Image

    return Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())
