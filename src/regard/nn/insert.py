"""Inserting non-local blocks into an existing network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from regard import _check
from regard.nn.non_local import NonLocal, NonLocal1d, NonLocal2d, NonLocal3d, PairwiseName

Position = str | tuple[int, int]

_BLOCKS: dict[type[nn.Module], type[NonLocal]] = {
    nn.Conv1d: NonLocal1d,
    nn.Conv2d: NonLocal2d,
    nn.Conv3d: NonLocal3d,
}
_SHORTCUTS = ("shortcut", "downsample")


def insert_nonlocal(
    model: nn.Module,
    after: Position | Iterable[Position] = (2, -2),
    affinity: PairwiseName = "embedded_gaussian",
    **options: Any,
) -> list[str]:
    """Insert non-local blocks (7.1) after residual blocks of a ResNet, in place, and return the names of the modules.

    `model`: the network. Its stages are a list `stages` whose members have `layers` (Hugging Face), or `layer1`,
    `layer2`, ... (torchvision), anywhere in the model.
    `after`: one position or several: (stage, block), counted from zero or from the end, or the name of a residual
    block, "layer3.4" or "encoder.stages.2.layers.4"; default the paper's (2, -2), before the last residual block of the
    third stage.
    `affinity`: as in `NonLocal2d`; default "embedded_gaussian".
    `options`: further arguments of `NonLocal2d`.

    Whether the block is 1d, 2d or 3d, and its channels, are read from the convolutions of the residual block; device,
    dtype and training mode are those of the residual block. The new module follows the residual block "4" in its
    `nn.Sequential`, under the name "4_nonlocal". No other name changes, so the model still loads its checkpoint with
    `strict=False`, and until it is trained its output is the same as before.

    >>> import torch
    >>> def stage(c): return nn.Sequential(*[nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU()) for _ in range(2)])
    >>> model = nn.Sequential()
    >>> model.layer1, model.layer2 = stage(4), stage(4)
    >>> insert_nonlocal(model, after=[(0, 0), "layer2.1"], affinity="dot_product")
    ['layer1.0_nonlocal', 'layer2.1_nonlocal']
    >>> list(model.layer1.state_dict())[:3]
    ['0.0.weight', '0.0.bias', '0_nonlocal.theta.weight']
    """
    if not isinstance(model, nn.Module):
        _check.complain("model", type(model).__name__, "a torch.nn.Module", "Pass the network itself.", TypeError)
    single = isinstance(after, str) or (isinstance(after, tuple) and all(isinstance(i, int) for i in after))
    positions: list[Any] = [after] if single else list(after)
    if not positions:
        _check.complain("after", "no position", "at least one", "For example after=(2, -2).")
    # All positions are resolved and all blocks built before the first insertion: an error leaves the model unchanged.
    names = [_find(model, position) for position in positions]
    if len(set(names)) < len(names):
        _check.complain("after", positions, "different residual blocks", f"They are {', '.join(names)}.")
    blocks = [_make(model.get_submodule(name), name, affinity, options) for name in names]
    for name, block in zip(names, blocks, strict=True):
        _put(model, name, block)
    return [f"{name}_nonlocal" for name in names]


def _find(model: nn.Module, position: Any) -> str:
    """The name of the residual block at a position."""
    if isinstance(position, str):
        parent, _, child = position.rpartition(".")
        modules = dict(model.named_modules())
        if position not in modules:
            known = [name for stage in _stages(model) for name in stage]
            remedy = f"Residual blocks here are {', '.join(known)}." if known else "See model.named_modules()."
            _check.complain("after", repr(position), "the name of a residual block of the model", remedy)
        if not isinstance(modules[parent], nn.Sequential):
            got = f"{position!r} inside a {type(modules[parent]).__name__}"
            _check.complain("after", got, "a residual block inside an nn.Sequential", "Name a block, not a stage.")
        if f"{child}_nonlocal" in modules[parent]._modules or isinstance(modules[position], NonLocal):
            _check.complain(
                "after", repr(position), "a residual block without one", "It has a non-local block already."
            )
        return position
    if not (isinstance(position, tuple) and len(position) == 2 and all(isinstance(i, int) for i in position)):
        _check.complain("after", repr(position), "a name or (stage, block)", "For example (2, -2).", TypeError)
    stages = list(_stages(model))
    if not stages:
        expected = "a ResNet with `stages` of `layers`, or `layer1`, `layer2`, ..."
        _check.complain("model", type(model).__name__, expected, "Give the name of a block: after='body.3'.")
    i, j = position
    if not -len(stages) <= i < len(stages):
        _check.complain("after", position, f"one of {len(stages)} stages", "Stages are counted from zero.")
    if not -len(stages[i]) <= j < len(stages[i]):
        _check.complain("after", position, f"one of the {len(stages[i])} blocks of stage {i}", "Counted from zero.")
    return _find(model, stages[i][j])


def _stages(model: nn.Module) -> Iterator[list[str]]:
    """The names of the residual blocks of each stage, non-local blocks left out."""
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        listed = getattr(module, "stages", None)
        stages: list[tuple[str, Any]]
        if isinstance(listed, (nn.ModuleList, nn.Sequential)) and all(hasattr(s, "layers") for s in listed):
            stages = [(f"{dot}stages.{i}.layers", stage.layers) for i, stage in enumerate(listed)]
        else:
            count = next(i for i in range(1, 100) if not isinstance(getattr(module, f"layer{i}", None), nn.Sequential))
            stages = [(f"{dot}layer{i}", getattr(module, f"layer{i}")) for i in range(1, count)]
        if stages:
            for name, stage in stages:
                yield [f"{name}.{child}" for child, b in stage.named_children() if not isinstance(b, NonLocal)]
            return


def _make(residual: nn.Module, name: str, affinity: PairwiseName, options: dict[str, Any]) -> NonLocal:
    convolutions = [
        m
        for path, m in residual.named_modules()
        if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and not set(_SHORTCUTS) & set(path.split("."))
    ]
    if not convolutions:
        _check.complain("after", f"{name!r}, a {type(residual).__name__}", "a block with convolutions", "Name another.")
    kind = next(block for conv, block in _BLOCKS.items() if isinstance(convolutions[-1], conv))
    block = kind(convolutions[-1].out_channels, affinity, **options)
    weight = convolutions[-1].weight
    return block.to(weight.device, weight.dtype).train(residual.training)


def _put(model: nn.Module, name: str, block: NonLocal) -> None:
    parent, _, child = name.rpartition(".")
    container = model.get_submodule(parent)
    # A Sequential runs its children in the order of registration, whatever their names: register the later ones again.
    later = list(container.named_children())
    later = later[[n for n, _ in later].index(child) + 1 :]
    for n, _ in later:
        delattr(container, n)
    container.add_module(f"{child}_nonlocal", block)
    for n, module in later:
        container.add_module(n, module)
