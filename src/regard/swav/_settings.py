"""The settings of a pretraining run, and presets that do not collapse."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from regard._problem import Problem
from regard.backbones import SmallResNet

Pair = tuple[float, float]


@dataclass(frozen=True)
class Crops:
    """How views are cut out of a picture and changed.

    First a square window that covers a share `window` of the picture is chosen, anew in each epoch; all views are cut
    out of it, so that in a picture of many things they show the same one. 2 views of `size` pixels cover a share
    `scale` of the window and `local` views of `local_size` cover `local_scale`; flipped with probability `flip`; with
    probability `jitter_p` brightness, contrast and saturation vary by `jitter` and the hue by that share of a turn;
    grey with `grey`; blurred with `blur`, by a deviation of `blur_sigma` (shares of a view's side). `ratio` bounds
    width over height of what is cut.

    >>> Crops(local=6).views
    8
    """

    size: int = 32
    window: Pair = (1.0, 1.0)
    scale: Pair = (0.2, 1.0)
    local: int = 4
    local_size: int = 18
    local_scale: Pair = (0.08, 0.5)
    ratio: Pair = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter_p: float = 0.8
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    grey: float = 0.2
    blur: float = 0.0
    blur_sigma: Pair = (0.003, 0.05)

    @property
    def views(self) -> int:
        """All views of one picture."""
        return 2 + self.local


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run computes. `batch_size` counts all processes; `queue` too.

    `freeze` is how many steps the prototypes stay as they are; `queue` is how many past embeddings help to make codes,
    from the moment it is full; `nonlocal_after` puts non-local blocks after residual blocks.

    >>> Settings(prototypes=30).crops.size
    32
    """

    backbone: str = "small"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    nonlocal_after: tuple[Any, ...] = ()
    pretrained: bool = False
    crops: Crops = field(default_factory=Crops)
    canvas: int = 0  # side that pictures are kept at before cropping; 0 chooses by their size and that of the views
    hidden: int = 256
    dim: int = 64
    prototypes: int = 60
    temperature: float = 0.1
    eps: float = 0.05
    iterations: int = 3
    queue: int = 0
    freeze: int = 100
    optimizer: str = "adamw"
    lr: float = 2e-3
    weight_decay: float = 1e-4
    warmup: int = 50
    steps: int = 1000
    batch_size: int = 128
    accumulate: int = 1
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def digits() -> Settings:
    """scikit-learn's digits, 8 x 8 grey: no flips, crops that keep the shape of a digit."""
    crops = Crops(
        size=16,
        scale=(0.5, 1.0),
        local=4,
        local_size=10,
        local_scale=(0.25, 0.6),
        flip=0.0,
        jitter=(0.4, 0.4, 0.0, 0.0),
        grey=0.0,
    )
    options = {"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2}
    return Settings(
        backbone_options=options, crops=crops, canvas=16, prototypes=30, iterations=10, steps=500, batch_size=64
    )


def small() -> Settings:
    """Photographs of 32 x 32, as in CIFAR."""
    return Settings(
        backbone_options={"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
        crops=Crops(local=2),
        prototypes=60,
        eps=0.02,
        iterations=10,
        steps=3000,
        batch_size=128,
    )


def scenes() -> Settings:
    """Drawn scenes of about 80 x 80 with few small objects: windows as large as an object, of any hue."""
    return Settings(
        backbone_options={"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
        crops=Crops(size=24, window=(0.09, 0.16), scale=(0.6, 1.0), local=0, jitter=(0.4, 0.4, 0.4, 0.5)),
        canvas=80,
        prototypes=50,
        eps=0.02,
        iterations=10,
        steps=300,
        batch_size=64,
        freeze=30,
        warmup=20,
    )


def photos() -> Settings:
    """Large photographs, as published for ImageNet with a small batch: ResNet-50, a queue, LARS."""
    crops = Crops(
        size=224,
        scale=(0.14, 1.0),
        local=6,
        local_size=96,
        local_scale=(0.05, 0.14),
        jitter=(0.8, 0.8, 0.8, 0.2),
        blur=0.5,
        blur_sigma=(0.0005, 0.009),
    )
    return Settings(
        backbone="microsoft/resnet-50",
        crops=crops,
        canvas=288,
        hidden=2048,
        dim=128,
        prototypes=3000,
        queue=3840,
        freeze=5005,
        optimizer="lars",
        lr=0.6,
        weight_decay=1e-6,
        warmup=0,
        steps=1_000_000,
        batch_size=256,
    )


PRESETS = {"digits": digits, "small": small, "scenes": scenes, "photos": photos}
"""The presets by name: functions that make their `Settings`."""


def preset(name: str, **changes: Any) -> Settings:
    """A preset with some settings changed; those of crops have their own names.

    >>> preset("small", steps=10, local=6).crops.local
    6
    """
    if name not in PRESETS:
        raise Problem(f"there is no preset {name!r}. Choose one of {', '.join(PRESETS)}.")
    settings = PRESETS[name]()
    of_crops = {f.name for f in fields(Crops)}
    known = {f.name for f in fields(Settings)} - {"crops"}
    if unknown := changes.keys() - of_crops - known:
        raise Problem(f"there is no setting {min(unknown)!r}. Settings are {', '.join(sorted(known | of_crops))}.")
    crops = replace(settings.crops, **{k: v for k, v in changes.items() if k in of_crops})
    settings = replace(settings, crops=crops, **{k: v for k, v in changes.items() if k in known})
    return checked(settings)


def checked(settings: Settings) -> Settings:
    """The settings, if they make sense."""
    crops = settings.crops
    for name in ("hidden", "dim", "prototypes", "iterations", "steps", "batch_size", "accumulate"):
        if getattr(settings, name) < 1:
            raise Problem(f"{name} must be at least 1, not {getattr(settings, name)}.")
    for name in ("temperature", "eps", "lr"):
        if not getattr(settings, name) > 0:
            raise Problem(f"{name} must be above 0, not {getattr(settings, name)}.")
    for name in ("queue", "freeze", "warmup", "weight_decay", "canvas"):
        if getattr(settings, name) < 0:
            raise Problem(f"{name} cannot be negative.")
    if settings.optimizer not in ("adamw", "lars"):
        raise Problem(f"optimizer must be adamw or lars, not {settings.optimizer!r}.")
    if settings.backbone_options and settings.backbone.startswith("small"):
        SmallResNet(**{"widths": (8,), "depths": (1,), **settings.backbone_options})
    if crops.size < 1 or crops.local < 0 or (crops.local and crops.local_size < 1):
        raise Problem("views need a size of at least one pixel, and their number cannot be negative.")
    for name in ("window", "scale", "local_scale", "ratio"):
        low, high = getattr(crops, name)
        if not 0 < low <= high or (name != "ratio" and high > 1):
            raise Problem(f"{name} must be two shares, 0 < low <= high <= 1, not {low}, {high}.")
    for name in ("flip", "jitter_p", "grey", "blur"):
        if not 0 <= getattr(crops, name) <= 1:
            raise Problem(f"{name} is a probability, not {getattr(crops, name)}.")
    return settings
