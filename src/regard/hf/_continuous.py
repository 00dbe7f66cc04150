"""Continuous attention in vision transformers: a density over the grid of patches, weights on the tokens before them.

Legend: B batch, H heads, L tokens, P prefix tokens (class, registers, distillation), h x w patches; L = P + h w.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import _check
from regard._torch import without_autocast
from regard.affinity import Dot
from regard.attention.random_state import with_dropout
from regard.continuous import Basis, Locations, grid, match_moments, ridge
from regard.hf._attention import output_recorder, refuse_unknown, weights_wanted
from regard.hf._masks import mask_and_bias
from regard.hf._reach import calls_interface, mark
from regard.maps.entmax import softmax
from regard.nn.continuous import basis_for

#: Alpha of the densities by the name of the attention.
DENSITIES = {"regard_continuous_softmax": 1, "regard_continuous_sparsemax": 2}
_GRID = "regard_grid"  # attribute of an attention: (h, w) in the current forward pass
_AFTER_PATCHES = ("num_detection_tokens",)  # settings of models that put tokens of their own after the patches


def continuous_attentions() -> dict[str, Callable[..., tuple[Tensor, Tensor | None]]]:
    """Every continuous attention function by its name."""
    return {name: functools.partial(attend_grid, name, recorder=output_recorder()) for name in DENSITIES}


def attend_grid(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    recorder: Any = None,
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function as transformers calls it: (B, L, H, d), and weights (B, H, L, L) if requested.

    Softmax of all scores gives the weights of the prefix, and the share of the patches together. The softmax over the
    patches alone gives a density with its moments (5.2); its effective weights (5.20), times that share, are those of
    the patches. Arguments as in `regard.hf._attention.attention`; there is no mask, as pictures have no padding.
    """
    mark(module, query.shape[1])
    refuse_unknown(keywords, ("softcap", "s_aux"))
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    shape = _grid_of(name, module, query, key)
    causal = bool(is_causal) or bool(getattr(module, "is_causal", False))
    bias = _bias_of(name, attention_mask, causal or indices is not None, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    prefix = key.shape[2] - shape[0] * shape[1]
    where, basis, operator = _regression(*shape)
    with without_autocast(query):  # densities and their expectations need float32
        working = torch.promote_types(query.dtype, torch.float32)
        s = Dot(query.shape[-1] ** -0.5 if scaling is None else scaling).scores(query.to(working), key.to(working))
        s = s if bias is None else s + bias
        p = softmax(s)
        density = match_moments(softmax(s[..., prefix:]), where, DENSITIES[name])
        effective = density.expect(basis) @ operator.to(s).mT
        share = p[..., prefix:].sum(-1, keepdim=True)
        weights = torch.cat([p[..., :prefix], share * effective.to(p)], -1).to(value.dtype)
    c = with_dropout(weights, dropout) @ value
    return c.transpose(1, 2).contiguous(), weights if weights_wanted(module, keywords, recorder) else None


def follow_grids(model: nn.Module) -> None:
    """Note the shape of the grid on all attentions behind a convolution that cuts pictures into patches, each pass.

    The shape is that of the picture in hand, not of the configuration, and need not be square.
    """
    modules = dict(model.named_modules())
    for name, conv in modules.items():
        cuts = isinstance(conv, nn.Conv2d) and conv.kernel_size == conv.stride and min(conv.kernel_size) > 1
        if not cuts or "regard_followed" in conv.__dict__:
            continue
        while name:  # the smallest part of the model that has both: in a model of two towers the vision tower
            name = name.rpartition(".")[0]
            if attentions := [m for m in modules[name].modules() if calls_interface(type(m))]:
                conv.__dict__["regard_followed"] = True
                conv.register_forward_hook(functools.partial(_note_grid, attentions))
                break


def _note_grid(attentions: list[nn.Module], _: nn.Module, __: Any, patches: Tensor) -> None:
    for module in attentions:
        module.__dict__[_GRID] = (int(patches.shape[-2]), int(patches.shape[-1]))


def _grid_of(name: str, module: nn.Module, query: Tensor, key: Tensor) -> tuple[int, int]:
    """(h, w) of the patches among the keys; an error where there is no such grid."""
    shape: tuple[int, int] | None = module.__dict__.get(_GRID)
    kind = type(module).__name__
    if shape is None:
        expected = "an attention over the patches that one convolution cuts from a picture"
        remedy = (
            "Take regard_softmax; in a model of two towers name them: attn_implementation="
            f'{{"vision_config": "{name}", "text_config": "regard_softmax"}}.'
        )
        _check.complain("attn_implementation", f"{name!r} for {kind}, which has no grid", expected, remedy)
    last = next((n for n in _AFTER_PATCHES if getattr(getattr(module, "config", None), n, 0)), None)
    if query.shape[2] != key.shape[2] or key.shape[2] < shape[0] * shape[1] or last is not None:
        got = f"{name!r} for {query.shape[2]} queries and {key.shape[2]} keys in {kind}"
        expected = f"self-attention of some prefix tokens and then all {shape[0]} x {shape[1]} patches"
        remedy = "Windows, and tokens after the patches, have no place in it: take regard_softmax."
        _check.complain("attn_implementation", got, expected, remedy)
    return shape


def _bias_of(name: str, attention_mask: Tensor | None, chosen: bool, keys: int) -> Tensor | None:
    """What is added to the scores; an error if a key is left out, by a mask or because the keys are `chosen`."""
    mask, bias = None, None
    if attention_mask is not None:
        mask, bias, causal = mask_and_bias(attention_mask, attention_mask.shape[-2], keys)
        chosen = chosen or causal
    if chosen or (mask is not None and not bool(mask.all())):
        got = f"{name!r} with a mask that leaves keys out"
        _check.complain("attn_implementation", got, "every patch in every density", "Take regard_softmax.")
    return bias


@functools.lru_cache(maxsize=32)
def _regression(height: int, width: int) -> tuple[Locations, Basis, Tensor]:
    """The patches of a grid, a basis on it, and the ridge operator of both."""
    with torch.inference_mode(False):
        where = grid(height, width)
        basis = basis_for(where)
        return where, basis, ridge(where, basis)
