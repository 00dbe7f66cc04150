"""Masks on their way through a model of transformers: floats that its own attention code may add, and back again."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import _check
from regard.hf._reach import calls_interface, names_in

#: Configurations of models that read the mask as a boolean one before they call regard.
_READ_AS_BOOLEANS: set[type] = set()


class _Known(NamedTuple):
    """What a mask of floats was made of, as long as it stays as it was made."""

    mask: Tensor
    causal: bool
    version: int


class Border(NamedTuple):
    """A mask that is True where a key takes part, a bias to add to the scores, and whether there is only causality."""

    mask: Tensor | None
    bias: Tensor | None
    causal: bool


def float_mask(*, dtype: torch.dtype = torch.float32, **keywords: Any) -> Tensor | None:
    """The mask (B, 1, Lq, Lk) of eager attention: zero where a key takes part, the least number of `dtype` elsewhere.

    Models with attention code of their own *add* the mask that they get, so that a boolean one would mask nothing. What
    it was made of is remembered for those that hand it to regard unchanged.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    if type(keywords.get("config")) in _READ_AS_BOOLEANS:
        return sdpa_mask(**keywords | {"allow_is_causal_skip": False})
    if torch.compiler.is_compiling():
        return eager_mask(dtype=dtype, **keywords)
    known = sdpa_mask(**keywords)
    causal = known is None and not keywords.get("allow_is_bidirectional_skip", False)
    if causal:
        known = sdpa_mask(**keywords | {"allow_is_causal_skip": False})
    if known is None:
        return None
    mask = torch.where(known, torch.zeros((), dtype=dtype, device=known.device), torch.finfo(dtype).min)
    if not mask.is_inference():  # an inference tensor could be changed in place unseen
        setattr(mask, "regard_known", _Known(known, causal, mask._version))  # noqa: B010
    return mask


def note(model: Any) -> None:
    """Remember whether an attention in the file of this model takes `logical_not` of the mask that it is given."""
    classes = [x for x in vars(sys.modules[type(model).__module__]).values() if isinstance(x, type)]
    if any("logical_not" in names_in(cls) for cls in classes if calls_interface(cls)):
        _READ_AS_BOOLEANS.add(type(model.config))


def at_the_border(given: Tensor, queries: int, keys: int) -> Border:
    """What an attention mask (..., Lq, Lk) of transformers says: True takes part, or floats to be added to the scores.

    Floats of half the least number of their dtype or below leave a key out, whatever it scores. Values are looked at on
    a CPU only; elsewhere a mask that only leaves out comes with a bias of zeros.
    """
    known = getattr(given, "regard_known", None)
    if isinstance(known, _Known) and known.version == given._version and given.shape[-2] == queries:
        if known.causal:
            return Border(None, None, True)
        return Border(known.mask[..., :keys], None, False)
    given = given[..., :keys]
    if given.dtype == torch.bool:
        return Border(given, None, False)
    if not given.is_floating_point():
        return Border(None, given, False)  # eager attention adds it
    left_out = given <= torch.finfo(given.dtype).min / 2
    readable = given.is_cpu and not given.requires_grad and _check.readable(given)
    if readable and bool((left_out | (given == 0)).all()):
        return Border(~left_out, None, False)
    return Border(~left_out, given.masked_fill(left_out, 0.0), False)
