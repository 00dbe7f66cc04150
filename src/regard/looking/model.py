"""A vision model of Hugging Face from a folder or the local cache, which takes a picture whole."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._install import install_extra
from regard._problem import Problem
from regard.affinity import Dot
from regard.attention.arguments import Map
from regard.hf import Recording, register, watch
from regard.hf._attention import attention, output_recorder
from regard.hf._masks import float_mask
from regard.looking.views import ModelView
from regard.maps.spelling import as_map

_EXCHANGED = "regard_exchanged"  # the attn_implementation of a model whose map is another than its own
_GREY = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class VisionModel:
    """A model and how it wants its pictures: height and width in pixels, mean and standard deviation of the colours."""

    model: Any
    size: tuple[int, int]
    mean: tuple[float, ...] = _GREY
    std: tuple[float, ...] = _GREY

    @classmethod
    def load(cls, name: str, *, download: bool = False) -> VisionModel:
        """The model in a folder, or under a name in the local cache of Hugging Face.

        `name`: a folder that `save_pretrained` wrote, or a name such as "facebook/dinov2-small".
        `download`: whether a model that is not here may be downloaded; default False.
        """
        try:
            import transformers
        except ImportError as error:
            raise Problem(f"regard look needs transformers: {install_extra('hf')}") from error
        here = {"local_files_only": not download}
        try:
            config = transformers.AutoConfig.from_pretrained(name, **here)
            classifies = any("ForImageClassification" in kind for kind in config.architectures or ())
            auto = transformers.AutoModelForImageClassification if classifies else transformers.AutoModel
            model = auto.from_pretrained(name, **here)
        except (OSError, ValueError) as error:
            what = "a folder of a saved model" if Path(name).exists() else "in the local cache of Hugging Face"
            advice = "" if download else f" To fetch it: regard look {name} PICTURE --download"
            raise Problem(f"{name} is not {what}, or transformers cannot load it.{advice}") from error
        mean, std = _colours(name, here)
        return cls.of(model, mean, std)

    @classmethod
    def of(cls, model: Any, mean: tuple[float, ...] = _GREY, std: tuple[float, ...] = _GREY) -> VisionModel:
        """A model in memory; of one with a tower for text, the tower for pictures."""
        towers = (getattr(model, name, None) for name in ("vision_model", "vision_tower"))
        model = next((tower for tower in towers if tower is not None), model).eval()
        size = getattr(model.config, "image_size", None)
        if size is None:
            kind = getattr(model.config, "model_type", type(model).__name__)
            raise Problem(f"{kind} is not a model of pictures: its configuration has no image_size.")
        height, width = (size, size) if isinstance(size, int) else size
        return cls(model, (int(height), int(width)), mean, std)

    def pixels(self, picture: Tensor) -> Tensor:
        """A picture (3, H, W) in bytes as the model takes it, (1, 3, h, w): resized from edge to edge, not cropped."""
        x = picture[None].float() / 255
        x = torch.nn.functional.interpolate(x, self.size, mode="bilinear", antialias=True, align_corners=False)
        mean, std = (torch.tensor(c).reshape(1, 3, 1, 1) for c in (self.mean, self.std))
        return (x - mean) / std

    def run(self, picture: Tensor, **how: Any) -> tuple[Recording, dict[str, float]]:
        """What every attention saw of a picture, and the likeliest classes with their shares, if it has classes.

        `how`: arguments of `regard.hf.watch`.
        """
        with torch.no_grad(), watch(self.model, **how) as seen:
            out = self.model(self.pixels(picture))
        logits = getattr(out, "logits", None)
        if logits is None:
            return seen, {}
        top = logits[0].softmax(-1).topk(min(5, logits.shape[-1]))
        names = self.model.config.id2label
        return seen, {str(names[int(i)]): float(p) for p, i in zip(top.values, top.indices, strict=True)}

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


def _colours(name: str, here: dict[str, bool]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the colours that a model was trained on; grey if it does not say."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(name, **here)
    except (OSError, ValueError):
        return _GREY, _GREY
    return tuple(settings.get("image_mean") or _GREY), tuple(settings.get("image_std") or _GREY)
