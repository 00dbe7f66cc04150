"""The settings of a pretraining run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from regard._problem import Problem
from regard.backbones._known import BACKBONE_NAMES, NonLocalName
from regard.training._setting import setting

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
    codes: Literal["sinkhorn", "kmeans", "sela"] = setting(
        "How samples are assigned: sinkhorn balances each batch (SwAV), kmeans clusters the whole set once per epoch "
        "(DeepCluster-v2), sela balances the whole set once per epoch (SeLa-v2).",
        "sinkhorn",
    )
    temperature: float = setting("Temperature of the softmax over prototypes in the loss.", 0.1)
    eps: float = setting(
        "Weight of the entropy in Sinkhorn's problem (sinkhorn, sela): smaller makes sharper codes.", 0.05
    )
    iterations: int = setting("Iterations of Sinkhorn or of k-means.", 3, at_least=1)
    queue: int = setting("Past embeddings that take part in making codes, once the queue is full.", 0, at_least=0)
    queue_epoch: int = setting("The first epoch, counted from 0, whose embeddings enter the queue.", 0, at_least=0)
    queue_step: int = setting("The first step, counted from 0, whose embeddings enter the queue.", 0, at_least=0)
    freeze: int = setting(
        "First steps in which the prototypes are frozen; centroids of kmeans always are.", 100, at_least=0
    )
    optimizer: Literal["adamw", "lars", "larc"] = setting(
        "The optimiser; larc is the published form of LARS, which scales and decays all parameters.", "adamw"
    )
    lr: float = setting("The learning rate after the warm-up.", 2e-3)
    prototype_lr: float = setting("Learning rate of the prototypes, over that of all other weights.", 1.0, at_least=0)
    final_lr: float = setting("The learning rate that the cosine ends at.", 0.0, at_least=0)
    weight_decay: float = setting(
        "Weight decay of matrices and kernels; with larc, of all parameters.", 1e-4, at_least=0
    )
    warmup: int = setting("Steps in which the learning rate rises; at most a quarter of all.", 50, at_least=0)
    warmup_start: float | None = setting(
        "The learning rate of the first step of the warm-up; none: lr over the steps of the warm-up.", None
    )
    clip: float | None = setting("Clip the gradient to this norm.", None)
    steps: int = setting("Updates of the weights.", 1000, at_least=1)
    batch_size: int = setting("Pictures per batch, over all processes.", 128, at_least=1)
    accumulate: int = setting("Batches per update of the weights.", 1, at_least=1)
    mixed_shards: int = setting(
        "Shards whose pictures are shuffled together, where there are more of them.", 16, at_least=1
    )
    norm_processes: int = setting(
        "Processes that share the statistics of batch norms, such as those of a machine; 0 for all, 1 for none.",
        0,
        at_least=0,
    )
    seed: int = setting("Seed of all random numbers.", 0)

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object; without `norm_processes` if it is 0, as runs of earlier days are compared with it."""
        return {name: value for name, value in asdict(self).items() if value or name != "norm_processes"}


def checked(settings: Settings) -> Settings:
    """The settings, unchanged; a Problem if a value is out of range."""
    for name in ("hidden", "dim", "prototypes", "iterations", "steps", "batch_size", "accumulate", "mixed_shards"):
        if getattr(settings, name) < 1:
            raise Problem(f"{name} must be at least 1, not {getattr(settings, name)}.")
    for name in ("temperature", "eps", "lr"):
        if not getattr(settings, name) > 0:
            raise Problem(f"{name} must be above 0, not {getattr(settings, name)}.")
    for name in (
        "norm_processes",
        "queue",
        "queue_epoch",
        "queue_step",
        "freeze",
        "warmup",
        "weight_decay",
        "prototype_lr",
        "canvas",
    ):
        if getattr(settings, name) < 0:
            raise Problem(f"{name} cannot be negative.")
    _check_choices(settings)
    _check_rates(settings)
    if settings.nonlocal_affinity and not settings.nonlocal_after:
        raise Problem(
            f"nonlocal_affinity {settings.nonlocal_affinity!r} has no blocks to belong to. Place them with "
            "nonlocal_after, for example [[1, 0]]."
        )
    if settings.backbone_options and settings.backbone.startswith("small"):
        from regard.backbones import SmallResNet

        SmallResNet(**{"widths": (8,), "depths": (1,), **settings.backbone_options})
    check_crops(settings.crops)
    return settings


def check_crops(crops: Crops) -> None:
    """A Problem if a value is out of range."""
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


def _check_choices(settings: Settings) -> None:
    """A Problem if a name is unknown, or does not go with other settings."""
    for name, known in (("optimizer", ("adamw", "lars", "larc")), ("codes", ("sinkhorn", "kmeans", "sela"))):
        if getattr(settings, name) not in known:
            raise Problem(f"{name} must be one of {', '.join(known)}, not {getattr(settings, name)!r}.")
    if settings.codes != "sinkhorn" and settings.queue:
        raise Problem(
            f"codes {settings.codes} are made from the whole set, and a queue of {settings.queue} would be ignored. "
            "Take queue 0, or codes sinkhorn."
        )


def _check_rates(settings: Settings) -> None:
    """A Problem if the learning rate does not rise to `lr` and fall to `final_lr`."""
    for name in ("final_lr", "warmup_start"):
        rate = getattr(settings, name)
        if rate is not None and not 0 <= rate <= settings.lr:
            raise Problem(f"{name} must be between 0 and lr ({settings.lr:g}), not {rate:g}.")
    if settings.warmup_start is not None and not settings.warmup:
        raise Problem("warmup_start is the beginning of a warm-up, and there is none. Take warmup above 0.")
