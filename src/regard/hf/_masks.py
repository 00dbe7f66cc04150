"""Masks in models of transformers: as floats, which a model's own attention code may add; and converted back."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import _check
from regard.hf._reach import calls_interface, names_in

#: Classes of configurations whose models treat the mask as boolean before they call regard.
_READ_AS_BOOLEANS: set[type] = set()


class _Source(NamedTuple):
    """The boolean mask that a float mask was made from; valid while the float mask has this `version`."""

    mask: Tensor
    causal: bool
    version: int


class MaskAndBias(NamedTuple):
    """A mask that is True where a key takes part, a bias to add to the scores, and whether the mask is just causal."""

    mask: Tensor | None
    bias: Tensor | None
    causal: bool


def float_mask(*, dtype: torch.dtype = torch.float32, **keywords: Any) -> Tensor | None:
    """The mask (B, 1, Lq, Lk) of eager attention: zero where a key takes part, the smallest `dtype` number elsewhere.

    Models with attention code of their own *add* the mask to the scores, so that a boolean one would mask nothing. The
    boolean mask is stored on the float mask, for models that pass it on to regard unmodified.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    if type(keywords.get("config")) in _READ_AS_BOOLEANS:
        return sdpa_mask(**keywords | {"allow_is_causal_skip": False})
    if torch.compiler.is_compiling():
        return eager_mask(dtype=dtype, **keywords)
    boolean = sdpa_mask(**keywords)
    causal = boolean is None and not keywords.get("allow_is_bidirectional_skip", False)
    if causal:
        boolean = sdpa_mask(**keywords | {"allow_is_causal_skip": False})
    if boolean is None:
        return None
    mask = torch.where(boolean, torch.zeros((), dtype=dtype, device=boolean.device), torch.finfo(dtype).min)
    if not mask.is_inference():  # an inference tensor has no version that shows changes in place
        setattr(mask, "regard_source", _Source(boolean, causal, mask._version))  # noqa: B010
    return mask


def note(model: Any) -> None:
    """Record the class of the configuration if an attention in the model's file takes `logical_not` of its mask."""
    classes = [x for x in vars(sys.modules[type(model).__module__]).values() if isinstance(x, type)]
    if any("logical_not" in names_in(cls) for cls in classes if calls_interface(cls)):
        _READ_AS_BOOLEANS.add(type(model.config))


def mask_and_bias(attention_mask: Tensor, queries: int, keys: int) -> MaskAndBias:
    """Convert an attention mask (..., Lq, Lk) of transformers: boolean, True takes part, or added to the scores.

    Floats of at most half the smallest number of their dtype leave a key out, whatever its score. Values are read on a
    CPU only; on other devices a mask that only leaves keys out comes with a bias of zeros.
    """
    source = getattr(attention_mask, "regard_source", None)
    same_queries = attention_mask.shape[-2] == queries
    if isinstance(source, _Source) and source.version == attention_mask._version and same_queries:
        if source.causal:
            return MaskAndBias(None, None, True)
        return MaskAndBias(source.mask[..., :keys], None, False)
    added = attention_mask[..., :keys]
    if added.dtype == torch.bool:
        return MaskAndBias(added, None, False)
    if not added.is_floating_point():
        return MaskAndBias(None, added, False)  # eager attention adds it
    left_out = added <= torch.finfo(added.dtype).min / 2
    readable = added.is_cpu and not added.requires_grad and _check.readable(added)
    if readable and bool((left_out | (added == 0)).all()):
        return MaskAndBias(~left_out, None, False)
    return MaskAndBias(~left_out, added.masked_fill(left_out, 0.0), False)


def sigmoid_bias(mask: Tensor | None, causal: bool, queries: int, keys: int, like: Tensor) -> Tensor:
    """-log n for sigmoid attention, which makes its weights sum to about one at first; n is the number of keys that a
    query sees, so that padding and a cache change nothing: broadcasts to (B, H, Lq, Lk).

    `mask`: True where a key takes part, or None.
    `causal`: whether query i sees the keys 0 to i.
    `queries`, `keys`: their numbers.
    `like`: a tensor with the device; the bias has at least float32.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    if mask is not None:
        seen = mask.expand(*mask.shape[:-1], keys)
        seen = seen if not causal else seen & torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril()
        count = seen.sum(-1, keepdim=True).clamp(min=1)
    elif causal:
        count = torch.arange(1, queries + 1, device=like.device).clamp(max=keys).unsqueeze(-1)
    else:
        return torch.full((1, 1), -math.log(keys), dtype=dtype, device=like.device)
    return -count.to(dtype).log()
