"""The settings of a pretraining run, and presets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from regard._problem import Problem
from regard.backbones._known import BACKBONE_NAMES, NonLocalName
from regard.training._setting import changed, setting

Pair = tuple[float, float]


@dataclass(frozen=True)
class Crops:
    """How views are cut out of a picture and changed.

    First a random square window that covers a share `window` of the picture is chosen in each epoch; all views are cut
    from it, so that in a picture of many things they show the same one. Two large views and `local` small ones are cut
    from the window, and flipped, recoloured, made grey and blurred at random.

    >>> Crops(local=6).views
    8
    """

    size: int = setting("Side of the two large views, in pixels.", 32, at_least=1)
    window: Pair = setting(
        "Least and largest share of the picture in the window that all views are cut from.", (1.0, 1.0)
    )
    tries: int = setting("Random windows, of which the one whose pixels vary most is used.", 1, at_least=1)
    scale: Pair = setting("Least and largest share of the window in a large view.", (0.2, 1.0))
    local: int = setting("Number of small views per picture.", 4, at_least=0)
    local_size: int = setting("Side of a small view, in pixels.", 18, at_least=1)
    local_scale: Pair = setting("Least and largest share of the window in a small view.", (0.08, 0.5))
    ratio: Pair = setting("Least and largest width over height of the part that is cut.", (3 / 4, 4 / 3))
    flip: float = setting("Probability that a view is mirrored.", 0.5)
    jitter_p: float = setting("Probability that the colours of a view are changed.", 0.8)
    jitter: tuple[float, float, float, float] = setting(
        "Largest change of brightness, contrast and saturation, and of the hue as a share of a turn.",
        (0.4, 0.4, 0.4, 0.1),
    )
    grey: float = setting("Probability that a view is grey.", 0.2)
    blur: float = setting("Probability that a view is blurred.", 0.0)
    blur_sigma: Pair = setting(
        "Least and largest deviation of the Gaussian blur, as shares of a view's side.", (0.003, 0.05)
    )

    @property
    def views(self) -> int:
        """Number of views per picture."""
        return 2 + self.local


def _json(text: str) -> Any:
    """The value of an option in JSON, lists as tuples."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Problem(f'{text!r} is not JSON ({error}). Write it as in \'{{"norm": "group"}}\'.') from error
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Settings:
    """All settings that decide the result of a run. `batch_size` and `queue` count all processes together.

    >>> Settings(prototypes=30).crops.size
    32
    """

    backbone: str = setting(
        "Backbone to train: small, small-wide, a saved folder, or a transformers model.",
        "small",
        suggest=BACKBONE_NAMES,
    )
    backbone_options: dict[str, Any] = setting(
        "Arguments of the backbone, as a JSON object.", factory=dict, parse=_json
    )
    nonlocal_after: tuple[Any, ...] = setting(
        "Residual blocks that a non-local block follows, as a JSON list of [stage, block].", (), parse=_json
    )
    nonlocal_affinity: NonLocalName | None = setting(
        "Affinity of these non-local blocks; none: embedded_gaussian.", None
    )
    pretrained: bool = setting("Start from the weights of the transformers model.", False)
    crops: Crops = field(default_factory=Crops)
    canvas: int = setting(
        "Side that pictures are resized to before cropping, in pixels; 0 chooses by their size and that of the views.",
        0,
        at_least=0,
    )
    hidden: int = setting("Width of the projection's hidden layer.", 256, at_least=1)
    dim: int = setting("Dimension of an embedding.", 64, at_least=1)
    prototypes: int = setting("Prototypes that samples are assigned to.", 60, at_least=1)
    temperature: float = setting("Temperature of the softmax over prototypes in the loss.", 0.1)
    eps: float = setting("Weight of the entropy in Sinkhorn's problem: smaller makes sharper codes.", 0.05)
    iterations: int = setting("Iterations of Sinkhorn.", 3, at_least=1)
    queue: int = setting("Past embeddings that take part in making codes, once the queue is full.", 0, at_least=0)
    freeze: int = setting("First steps in which the prototypes are frozen.", 100, at_least=0)
    optimizer: Literal["adamw", "lars"] = setting("The optimiser.", "adamw")
    lr: float = setting("The learning rate after the warm-up.", 2e-3)
    weight_decay: float = setting("Weight decay of matrices and kernels.", 1e-4, at_least=0)
    warmup: int = setting("Steps in which the learning rate rises; at most a quarter of all.", 50, at_least=0)
    clip: float | None = setting("Clip the gradient to this norm.", None)
    steps: int = setting("Updates of the weights.", 1000, at_least=1)
    batch_size: int = setting("Pictures per batch, over all processes.", 128, at_least=1)
    accumulate: int = setting("Batches per update of the weights.", 1, at_least=1)
    seed: int = setting("Seed of all random numbers.", 0)

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def digits_preset() -> Settings:
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


def small_preset() -> Settings:
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


def scenes_preset() -> Settings:
    """Drawn scenes of about 80 x 80 with few small objects: windows of an object's size, frozen prototypes."""
    crops = Crops(size=24, window=(0.12, 0.2), tries=4, scale=(0.5, 0.9), local=0, jitter=(0.3, 0.3, 0.3, 0.15))
    return Settings(
        backbone_options={"widths": [32, 64, 128], "depths": [1, 1, 1], "stem_stride": 2},
        crops=crops,
        canvas=80,
        prototypes=60,
        eps=0.03,
        steps=300,
        batch_size=128,
        freeze=1_000_000,
        warmup=20,
    )


def photos_preset() -> Settings:
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


PRESETS = {"digits": digits_preset, "small": small_preset, "scenes": scenes_preset, "photos": photos_preset}
"""The presets by name: functions that return their `Settings`."""


def preset(name: str, **changes: Any) -> Settings:
    """A preset with some settings changed; those of crops are addressed by their names alone.

    >>> preset("small", steps=10, local=6).crops.local
    6
    """
    if name not in PRESETS:
        raise Problem(f"there is no preset {name!r}. Choose one of {', '.join(PRESETS)}.")
    return checked(changed(PRESETS[name](), changes))


def checked(settings: Settings) -> Settings:
    """The settings, unchanged; a Problem if a value is out of range."""
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
    if settings.nonlocal_affinity and not settings.nonlocal_after:
        raise Problem(
            f"nonlocal_affinity {settings.nonlocal_affinity!r} has no blocks to belong to. Place them with "
            "nonlocal_after, for example [[1, 0]]."
        )
    if settings.backbone_options and settings.backbone.startswith("small"):
        from regard.backbones import SmallResNet

        SmallResNet(**{"widths": (8,), "depths": (1,), **settings.backbone_options})
    if crops.tries < 1:
        raise Problem(f"tries must be at least 1, not {crops.tries}.")
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
