"""Non-local blocks of mmcv, and of the authors' Caffe2 code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from regard import _check
from regard.importers._named import Named
from regard.nn.non_local import NonLocal, NonLocal1d, NonLocal2d, NonLocal3d, PairwiseName

_BY_DIMENSIONS: tuple[type[NonLocal], ...] = (NonLocal1d, NonLocal2d, NonLocal3d)
_CELLS = ((2,), (2, 2), (1, 2, 2))  # of mmcv's sub_sample

Scale = float | Literal["published"] | None


def mmcv_nonlocal(
    state: Mapping[str, Any],
    prefix: str = "",
    affinity: Literal["embedded_gaussian", "dot_product"] = "embedded_gaussian",
    *,
    scale: Scale = "published",
) -> NonLocal:
    """A `NonLocal1d`, `2d` or `3d` (7.1) with the weights of mmcv's block of the same name, in evaluation mode.

    Dimensions and channels are read from the shapes (c, C, 1, 1); from the names whether there is a norm
    (`conv_out.bn`) or sub-sampling (`g.0.conv`), and the affinity, except that the embedded Gaussian and the dot
    product have the same names. A name that is missing, left over or of another shape is an error.

    `state`: tensors by name, a `state_dict`.
    `prefix`: of the names of the block, for example "layer3.4.nonlocal."; default "".
    `affinity`: which of the two, where the names leave it open; default "embedded_gaussian".
    `scale`: as in `NonLocal2d`; 1 for a block with use_scale=False.

    >>> shapes = {"g.conv": (2, 4), "theta.conv": (2, 4), "phi.conv": (2, 4), "conv_out.conv": (4, 2)}
    >>> state = {f"{name}.weight": torch.randn(*shape, 1, 1) for name, shape in shapes.items()}
    >>> state |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    >>> mmcv_nonlocal(state)
    NonLocal2d(
      4, affinity=embedded_gaussian, map=softmax, inner=2, scale=None
      (theta): Linear(in_features=4, out_features=2, bias=True)
      (phi): Linear(in_features=4, out_features=2, bias=True)
      (g): Linear(in_features=4, out_features=2, bias=True)
      (out): Linear(in_features=2, out_features=4, bias=True)
    )
    """
    _check.choice("affinity", affinity, ("embedded_gaussian", "dot_product"))
    named = Named("state", state, prefix, "mmcv's block")
    pooled = "0." if "g.0.conv.weight" in named else ""
    kind: PairwiseName = affinity
    if "theta.conv.weight" not in named:
        kind = "gaussian"
    elif "concat_project.conv.weight" in named:
        kind = "concatenation"
    weights = {"g": _layer(named, f"g.{pooled}conv"), "out": _layer(named, "conv_out.conv")}
    if kind != "gaussian":
        weights |= {"theta": _layer(named, "theta.conv"), "phi": _layer(named, f"phi.{pooled}conv")}
    dimensions, inner, channels = _sizes(named, weights["g"][0])
    norm: dict[str, Tensor] | None = None
    if "conv_out.bn.weight" in named:
        names = ("weight", "bias", "running_mean", "running_var")
        norm = {name: named.take(f"conv_out.bn.{name}", (channels,)) for name in names}
    block = _BY_DIMENSIONS[dimensions - 1](
        channels,
        kind,
        inner=inner,
        scale=scale,
        subsample=_CELLS[dimensions - 1] if pooled else 1,
        norm="batch" if norm else None,
    )
    if kind == "concatenation":
        weights["w"] = (named.take("concat_project.conv.weight", (1, 2 * inner, 1, 1)).flatten(), None)
    named.done("conv_out.bn.num_batches_tracked")
    return _filled(block, weights, norm, named)


def caffe2_nonlocal(
    blobs: Mapping[str, Any],
    prefix: str,
    affinity: Literal["embedded_gaussian", "dot_product"] = "embedded_gaussian",
    *,
    subsample: int | tuple[int, ...] = (1, 2, 2),
    scale: Scale = "published",
) -> NonLocal:
    """A `NonLocal3d` (7.1) with the weights of a block of the authors' Caffe2 code, in evaluation mode.

    The files are pickles, and loading a pickle can run any code: read one only if you trust it, and pass its dictionary
    "blobs". Keys and values are pooled before their projections, as in that code. With a batch norm, "..._bn_riv" is
    the running variance, whatever its name says; an affine layer in its place (USE_AFFINE) is folded into the output
    projection.

    `blobs`: arrays by name.
    `prefix`: of the names of one block, for example "nonlocal_conv3_1", whose arrays are "nonlocal_conv3_1_theta_w" of
    shape (c, C, 1, 1, 1), "..._theta_b" and so on.
    `affinity`: "embedded_gaussian" (default) or "dot_product".
    `subsample`: cells of the pooling; default (1, 2, 2); 1 for a block with USE_MAXPOOL off.
    `scale`: as in `NonLocal2d`; 1.0 for a block with USE_SCALE off.

    >>> names = {"theta": (2, 4), "phi": (2, 4), "g": (2, 4), "out": (4, 2)}
    >>> blobs = {f"nonlocal_conv4_1_{name}_w": torch.randn(*shape, 1, 1, 1) for name, shape in names.items()}
    >>> blobs |= {f"nonlocal_conv4_1_{name}_b": torch.zeros(shape[0]) for name, shape in names.items()}
    >>> caffe2_nonlocal(blobs, "nonlocal_conv4_1").extra_repr()
    '4, affinity=embedded_gaussian, map=softmax, inner=2, scale=None, subsample=(1, 2, 2), pool=before'
    """
    _check.choice("affinity", affinity, ("embedded_gaussian", "dot_product"))
    trained = {name: x for name, x in blobs.items() if not str(name).endswith("_momentum")}
    named = Named("blobs", trained, f"{prefix}_", "the authors' block")
    weights = {name: _layer(named, name, "_w", "_b") for name in ("theta", "phi", "g", "out")}
    dimensions, inner, channels = _sizes(named, weights["g"][0])
    norm: dict[str, Tensor] | None = None
    if "bn_s" in named:
        norm = {"weight": named.take("bn_s", (channels,)), "bias": named.take("bn_b", (channels,))}
    if norm is not None and "bn_rm" in named:
        norm |= {"running_mean": named.take("bn_rm", (channels,)), "running_var": named.take("bn_riv", (channels,))}
    elif norm is not None:
        weight, bias = weights["out"]
        factor = norm["weight"].reshape(-1, *[1] * (weight.dim() - 1))
        weights["out"] = weight * factor, norm["bias"] + (0 if bias is None else bias * norm["weight"])
        norm = None
    named.done()
    block = _BY_DIMENSIONS[dimensions - 1](
        channels,
        affinity,
        inner=inner,
        scale=scale,
        subsample=subsample,
        pool="before",
        norm="batch" if norm else None,
    )
    return _filled(block, weights, norm, named)


_Weights = tuple[Tensor, Tensor | None]


def _layer(named: Named, name: str, weight: str = ".weight", bias: str = ".bias") -> _Weights:
    """Weight of a convolution, and its bias, or None where there is none."""
    return named.take(name + weight), named.take(name + bias) if name + bias in named else None


def _sizes(named: Named, weight: Tensor) -> tuple[int, int, int]:
    """Dimensions, inner channels and channels, from the weight of g."""
    if not 3 <= weight.dim() <= 5 or set(weight.shape[2:]) != {1}:
        got = f"a g of shape {tuple(weight.shape)}"
        _check.complain(named.argument, got, "(c, C, 1), (c, C, 1, 1) or (c, C, 1, 1, 1)", "Check the prefix.")
    return weight.dim() - 2, weight.shape[0], weight.shape[1]


def _filled(block: NonLocal, weights: dict[str, _Weights], norm: dict[str, Tensor] | None, named: Named) -> NonLocal:
    """The block with all its weights replaced by these."""
    state: dict[str, Tensor] = {}
    for name, (weight, bias) in weights.items():
        if name == "w":
            state[name] = weight
            continue
        state[f"{name}.weight"] = weight.flatten(1)
        state[f"{name}.bias"] = torch.zeros_like(weight.flatten(1)[:, 0]) if bias is None else bias
    for name, x in (norm or {}).items():
        state[f"norm.{name}"] = x
    initial = block.state_dict()
    for name, x in initial.items():
        if name in state and state[name].shape != x.shape:
            got = f"{name} of shape {tuple(state[name].shape)}"
            _check.complain(named.argument, got, str(tuple(x.shape)), "Is the file of such a block?")
    if norm:
        state["norm.num_batches_tracked"] = initial["norm.num_batches_tracked"]
    block.load_state_dict(state)
    return block.to(next(iter(weights.values()))[0].dtype).eval()
