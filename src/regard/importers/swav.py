"""facebook's SwAV (facebookresearch/swav) as the task of regard: backbone, projection, prototypes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard._problem import Problem
from regard.importers._weights import Supply, Weights, count_of, fill, read_weights, shape_of

if TYPE_CHECKING:  # other importers need fewer packages
    from regard.backbones import Backbone
    from regard.swav import Swav

_SWAV = "facebook's SwAV"
_HEADS = re.compile(r"prototypes\.prototypes(\d+)\.weight")


def read_swav(source: Path | str | Mapping[str, Any], *, head: int | None = None, size: int = 224) -> Swav:
    """Backbone, projection and prototypes of a checkpoint of facebook's SwAV or DeepCluster-v2, as a `Swav`.

    `source` is their .pth.tar or its state_dict, with or without "module." before the names. `head` chooses one of
    several sets of prototypes; default None, there is one. `size` is the side of the backbone's input in pixels;
    default 224. The backbone, a ResNet with bottlenecks of any width and depth, becomes transformers' ResNetModel:
    `save_backbone(task.backbone, folder)` writes it for all commands.

    `task.embed(x)` of pictures (B, 3, size, size) and `task.scores(z)` equal theirs; the bias before the norm, which
    ours does not have, is subtracted from the norm's running mean, which is equivalent, in training too. Prototypes are
    as stored; training normalises them after each step, theirs before it.

    >>> import torch
    >>> read_swav({"fc.weight": torch.ones(1)})
    Traceback (most recent call last):
    regard._problem.Problem: there is no weight conv1.weight: this is no checkpoint of facebook's SwAV. ...
    """
    from regard.swav import Settings, Swav

    weights = read_weights(source)
    backbone = _backbone(weights, size)
    take = Supply(weights, _SWAV)
    fill(backbone.network, _renamed(take), {}, _SWAV)
    if "projection_head.weight" in take.left:
        raise Problem("projection_head is one layer, and that of regard two with a norm between. No place for it.")
    hidden = shape_of(weights, "projection_head.0.weight", _SWAV)[0]
    dim = shape_of(weights, "projection_head.3.weight", _SWAV)[0]
    prototypes = take(_prototypes_of(weights, head))
    for name in list(take.left):  # the sets that were not chosen
        if _HEADS.fullmatch(name):
            take(name)
    task = Swav(backbone, Settings(hidden=hidden, dim=dim, prototypes=len(prototypes)))
    bias = take("projection_head.0.bias")
    projection = {"0.weight": take("projection_head.0.weight")}
    for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        projection[f"1.{part}"] = take(f"projection_head.1.{part}")
    projection["1.running_mean"] = projection["1.running_mean"] - bias
    projection |= {f"3.{part}": take(f"projection_head.3.{part}") for part in ("weight", "bias")}
    fill(task.projection, projection, {}, _SWAV)
    fill(task.prototypes, {"weight": prototypes}, take.left, _SWAV)
    return task


def _prototypes_of(weights: Weights, head: int | None) -> str:
    """The name of the weight of the prototypes."""
    sets = sorted(int(match[1]) for name in weights if (match := _HEADS.fullmatch(name)))
    if not sets:
        if head is not None:
            raise Problem(f"there is no set {head} of prototypes, only one without a number. Leave head out.")
        return "prototypes.weight"
    if head not in sets:
        raise Problem(f"there are the sets {', '.join(map(str, sets))} of prototypes. Choose one: head={sets[0]}")
    return f"prototypes.prototypes{head}.weight"


def _backbone(weights: Weights, size: int) -> Backbone:
    """A ResNet of transformers with the sizes of these weights."""
    import transformers

    from regard.backbones import Backbone, Preparation

    stem = shape_of(weights, "conv1.weight", _SWAV)[0]
    stages = [f"layer{i}." for i in range(1, 1 + count_of(weights, "layer"))]
    config = transformers.ResNetConfig(
        embedding_size=stem,
        hidden_sizes=[shape_of(weights, f"{stage}0.conv3.weight", _SWAV)[0] for stage in stages],
        depths=[count_of(weights, stage) for stage in stages],
        layer_type="bottleneck",
    )
    network = transformers.ResNetModel(config)
    return Backbone(network, Preparation(size), {"family": "transformers", "class": "ResNetModel"})


def _renamed(take: Supply) -> Weights:
    """The weights of the backbone under transformers' names."""
    renamed: Weights = {}
    for name in list(take.left):
        if name.startswith(("conv1.", "bn1.")):
            kind, rest = name.split(".", 1)
            renamed[f"embedder.embedder.{_part(kind)}.{rest}"] = take(name)
        elif match := re.fullmatch(r"layer(\d+)\.(\d+)\.(conv|bn)(\d)\.(\w+)", name):
            stage, block, kind, layer, rest = match.groups()
            place = f"encoder.stages.{int(stage) - 1}.layers.{block}.layer.{int(layer) - 1}"
            renamed[f"{place}.{_part(kind)}.{rest}"] = take(name)
        elif match := re.fullmatch(r"layer(\d+)\.(\d+)\.downsample\.([01])\.(\w+)", name):
            stage, block, number, rest = match.groups()
            kind = "conv" if number == "0" else "bn"
            renamed[f"encoder.stages.{int(stage) - 1}.layers.{block}.shortcut.{_part(kind)}.{rest}"] = take(name)
    return renamed


def _part(kind: str) -> str:
    return "convolution" if kind.startswith("conv") else "normalization"
