"""The class of all backbones: a network that returns a feature map, and the preparation of its pictures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from regard import _check
from regard._fixed_numbers import fixed_numbers
from regard._problem import Problem
from regard.hub import Pretrained
from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Preparation:
    """Preparation of pictures for a backbone: `size` of its square input in pixels, `mean` and `std` per channel.

    >>> x = Preparation(size=2, mean=(0, 0, 0), std=(1, 1, 1))(torch.full((1, 3, 4, 4), 51, dtype=torch.uint8))
    >>> x.shape, torch.allclose(x, torch.tensor(0.2))
    (torch.Size([1, 3, 2, 2]), True)
    """

    size: int
    mean: tuple[float, float, float] = IMAGENET[0]
    std: tuple[float, float, float] = IMAGENET[1]

    def __post_init__(self) -> None:
        _check.count("size", self.size)
        for name in ("mean", "std"):
            values = tuple(float(v) for v in getattr(self, name))
            if len(values) != 3 or (name == "std" and min(values) <= 0):
                _check.complain(name, values, "three numbers (positive for std)", "One for red, green and blue each.")
            object.__setattr__(self, name, values)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures (B, 3, H, W), uint8 or floats from 0 to 1, to normalised floats (B, 3, size, size)."""
        x = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures
        if x.shape[-2:] != (self.size, self.size):
            x = interpolate(x, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        return self.normalise(x)

    def normalise(self, x: Tensor) -> Tensor:
        """Floats from 0 to 1, less `mean`, divided by `std`, per channel."""
        mean, std = (fixed_numbers(values, x).view(3, 1, 1) for values in (self.mean, self.std))
        return (x - mean) / std


class Backbone(Pretrained, nn.Module):
    """A network with the width of its feature map, `dim`, and the `preparation` of its pictures.

    `save_pretrained`, `from_pretrained` and `push_to_hub` are as on the Hugging Face Hub.

    `network`: a module from (B, 3, H, W) to (B, dim, h, w), or to an output with such a `last_hidden_state`; tokens
        (B, n, dim) of a square of patches, with or without a class token, are reshaped to a map. A method `stages(x)`,
        if it has one, returns the maps of its stages.
    `preparation`: of its pictures.
    `settings`: how to build the network again; default None: it can be saved, and loaded into a given network.
    `dim`: default 0, measured on an empty picture.

    >>> from regard.backbones import SmallResNet
    >>> backbone = Backbone(SmallResNet((4, 8), (1, 1)), Preparation(size=8))
    >>> backbone.dim, backbone(torch.zeros(1, 3, 8, 8)).shape
    (8, torch.Size([1, 8, 4, 4]))
    """

    def __init__(
        self, network: nn.Module, preparation: Preparation, settings: Mapping[str, Any] | None = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.network = network
        self.preparation = preparation
        self.settings: dict[str, Any] = dict(settings) if settings is not None else {"family": "given"}
        self.dim = dim or self._measure()

    @property
    def config(self) -> dict[str, Any]:
        """All but the weights, as a JSON object."""
        return {"kind": "backbone", **self.settings, "dim": self.dim, "preparation": asdict(self.preparation)}

    def prepare(self, pictures: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) prepared for this network."""
        return self.preparation(pictures)

    def forward(self, x: Tensor) -> Tensor:
        """The feature map (B, dim, h, w) of prepared pictures."""
        return _map_of(self.network(x))

    def stages(self, x: Tensor) -> list[Tensor]:
        """The maps (B, D, h, w) of all stages of the network, from one pass over prepared pictures.

        They come from the network's method `stages(x)`, or are the hidden states of a transformers model.
        """
        if inspect.ismethod(stages := getattr(self.network, "stages", None)):
            return list(map(_map_of, stages(x)))
        if self.settings.get("family") == "transformers":
            out = self.network(x, output_hidden_states=True)
            states = getattr(out, "reshaped_hidden_states", None) or out.hidden_states
            # The first is the input of the first stage, and the last may lack the norm that the feature map has.
            return [*map(_map_of, states[1:-1]), _map_of(out)]
        raise Problem(
            f"{type(self.network).__name__} does not give its stages. Use its last map alone, or give it a method "
            "stages(x) that returns their maps."
        )

    def pooled(self, x: Tensor) -> Tensor:
        """The feature map averaged over its cells, (B, dim)."""
        features: Tensor = self(x)
        return features.flatten(2).mean(-1)

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The model card of this backbone; `name` is the folder or repository that it is loaded from."""
        size = self.preparation.size
        by_module = self.settings.get("family") == "given"
        load = f'load_backbone("{name}", network)' if by_module else f'Backbone.from_pretrained("{name}")'
        code = f"""
import torch
from regard.backbones import {load.split("(")[0].split(".")[0]}

backbone = {load}
pictures = torch.randint(0, 256, (2, 3, {size}, {size}), dtype=torch.uint8)
features = backbone(backbone.prepare(pictures))
"""
        count = sum(parameter.numel() for parameter in self.parameters())
        summary = (
            f"A backbone of regard, {count:,} parameters: pictures (B, 3, {size}, {size}) to a feature map of width "
            f"{self.dim}."
        )
        if by_module:
            summary += " It was given as a module; `network` is that module, made again."
        return Card(name, summary, "image-feature-extraction", code, self.config, tags=["backbone"], license=license)

    def _write(self, place: ModelFolder) -> None:
        from regard.backbones._files import save_backbone

        save_backbone(self, place.path)

    @classmethod
    def _opened(cls, place: ModelFolder) -> Self:
        from regard.backbones._files import load_backbone

        return load_backbone(place.path).eval()  # type: ignore[return-value]

    def _measure(self) -> int:
        """The network's attribute `dim`, or else the width of its feature map of an empty picture."""
        dim = getattr(self.network, "dim", None)
        if isinstance(dim, int):
            return dim
        training = self.network.training
        like = next(self.network.parameters(), torch.zeros(()))
        size = self.preparation.size
        with torch.no_grad():
            width = self.eval()(torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype)).shape[1]
        self.train(training)
        return int(width)


def _map_of(out: Any) -> Tensor:
    """The feature map (B, D, h, w) of a network's output."""
    if not isinstance(out, Tensor):
        out = getattr(out, "last_hidden_state", None)
    if isinstance(out, Tensor) and out.dim() == 4:
        return out
    if isinstance(out, Tensor) and out.dim() == 3:
        for special in (0, 1):  # tokens besides the patches come first
            side = round((out.shape[1] - special) ** 0.5)
            if side * side == out.shape[1] - special:
                return out[:, special:].mT.reshape(out.shape[0], out.shape[2], side, side)
    got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else "no tensor"
    raise Problem(f"the backbone gave {got}, not a feature map (B, D, h, w). Take the network without its last layers.")
