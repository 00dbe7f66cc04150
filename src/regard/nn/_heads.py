"""What every multi-head module shares: weights if they are wanted, dropout, biases, and torch's masks at the border."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.affinity import Affinity
from regard.attention.arguments import Causal, Map
from regard.attention.attend import attend
from regard.attention.random_state import with_dropout
from regard.attention.weights import attention_weights
from regard.wasserstein.affinities import Distance


def attend_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    affinity: Affinity,
    map: Map,
    mask: Tensor | None = None,
    *,
    causal: Causal = False,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Context (..., H, Lq, dv), and the weights that made it (..., H, Lq, Lk) if needed; see `regard.attend`.

    `bias` is added to the scores. `dropout` is the share of weights set to zero, here and now: pass zero outside of
    training. Features become distributions first where the affinity is a distance between them.
    """
    if isinstance(affinity, Distance):
        q, k = affinity.pack(q), affinity.pack(k)
    if not need_weights:
        return attend(q, k, v, affinity, map, mask, causal=causal, bias=bias, dropout_p=dropout), None
    p = with_dropout(attention_weights(q, k, affinity, map, mask, causal=causal, bias=bias), dropout)
    _check.finite("v", v)
    return p @ v, p


def masks_of_torch(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, scores: torch.Size
) -> tuple[Tensor | None, Tensor | None]:
    """Masks as `torch.nn.MultiheadAttention` takes them, as a mask that is True where a key takes part, and a bias.

    `scores` is the shape ([B,] H, Lq, Lk). Zeros and minus infinities mask; any other float mask is a bias.
    """
    mask: Tensor | None = None
    bias: Tensor | None = None
    for name, given in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if given is None:
            continue
        given = _aligned(name, given, scores)
        if given.dtype == torch.bool:
            part = ~given
        elif _only_masks(given):
            part = given == 0
        else:
            _check.below_infinity(name, given)
            bias = given if bias is None else bias + given
            continue
        mask = part if mask is None else mask & part
    return mask, bias


def _only_masks(given: Tensor) -> bool:
    """Whether a float mask is made of zeros and minus infinities, where a look at it makes nobody wait.

    A boolean mask says the same to more algorithms.
    """
    look = given.is_cpu and not given.requires_grad and _check.readable(given)
    return look and bool(((given == 0) | (given == -math.inf)).all())


def _aligned(name: str, given: Tensor, scores: torch.Size) -> Tensor:
    """The mask with axes that broadcast to the scores, if it has one of the shapes that torch allows."""
    batched = len(scores) == 4
    if given.dtype != torch.bool and not given.dtype.is_floating_point:
        remedy = "Use .bool(); True leaves a key out, as in torch."
        _check.complain(name, given.dtype, "a boolean or floating-point mask", remedy, TypeError)
    allowed: list[tuple[int, ...]]
    if name == "key_padding_mask":
        allowed = [(scores[0], scores[-1]) if batched else (scores[-1],)]
    else:
        allowed = [tuple(scores[-2:]), (math.prod(scores[:-2]), *scores[-2:])]
    if tuple(given.shape) not in allowed:
        wanted = " or ".join(str(tuple(shape)) for shape in allowed)
        _check.complain(
            name, f"shape {tuple(given.shape)}", wanted, "Sizes are batch, heads times batch, queries, keys."
        )
    if name == "key_padding_mask":
        return given[..., None, None, :]
    return given.unflatten(0, tuple(scores[:-2])) if given.dim() == 3 else given
