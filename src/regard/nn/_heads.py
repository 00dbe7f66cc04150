"""What every multi-head module shares: attention with optional weights, dropout and bias; torch's masks converted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import _check
from regard.affinity import Affinity, SoftCap
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
    sink: float | Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Context (..., H, Lq, dv), and the weights that made it (..., H, Lq, Lk) if needed; see `regard.attend`.

    `q`, `k`: (..., H, Lq, d) and (..., H, Lk, d); packed into distributions first if the affinity is a `Distance`,
    capped or not.
    `v`: (..., H, Lk, dv).
    `affinity`, `map`: of the attention.
    `mask`: boolean, broadcasts to the weights, True = takes part; default None.
    `causal`: as in `regard.attend`; default False.
    `bias`: added to the scores; default None.
    `sink`: as in `regard.attend`; default None.
    `dropout`: share of weights set to zero in this call; pass zero outside of training; default 0.
    `need_weights`: return the weights, which then are in memory; default False.
    """
    distance = affinity.of if isinstance(affinity, SoftCap) else affinity
    if isinstance(distance, Distance):
        q, k = distance.pack(q), distance.pack(k)
    if not need_weights:
        return attend(q, k, v, affinity, map, mask, causal=causal, bias=bias, sink=sink, dropout_p=dropout), None
    p = with_dropout(attention_weights(q, k, affinity, map, mask, causal=causal, bias=bias, sink=sink), dropout)
    _check.finite("v", v)
    return p @ v, p


def masks_of_torch(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, scores: torch.Size
) -> tuple[Tensor | None, Tensor | None]:
    """Masks as `torch.nn.MultiheadAttention` takes them, as a mask that is True where a key takes part, and a bias.

    `scores` is the shape ([B,] H, Lq, Lk). A float mask of zeros and minus infinities becomes a mask, any other a bias.
    """
    mask: Tensor | None = None
    bias: Tensor | None = None
    for name, argument in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if argument is None:
            continue
        torch_mask = _aligned(name, argument, scores)
        if torch_mask.dtype == torch.bool:
            takes_part = ~torch_mask
        elif _only_masks(torch_mask):
            takes_part = torch_mask == 0
        else:
            _check.below_infinity(name, torch_mask)
            bias = torch_mask if bias is None else bias + torch_mask
            continue
        mask = takes_part if mask is None else mask & takes_part
    return mask, bias


def _only_masks(torch_mask: Tensor) -> bool:
    """Whether a float mask consists of zeros and minus infinities; False where reading it would synchronise a device.

    More algorithms take a boolean mask than a bias.
    """
    readable = torch_mask.is_cpu and not torch_mask.requires_grad and _check.readable(torch_mask)
    return readable and bool(((torch_mask == 0) | (torch_mask == -math.inf)).all())


def _aligned(name: str, torch_mask: Tensor, scores: torch.Size) -> Tensor:
    """The mask with axes that broadcast to the scores, if it has one of the shapes that torch allows."""
    batched = len(scores) == 4
    if torch_mask.dtype != torch.bool and not torch_mask.dtype.is_floating_point:
        remedy = "Use .bool(); True leaves a key out, as in torch."
        _check.complain(name, torch_mask.dtype, "a boolean or floating-point mask", remedy, TypeError)
    allowed: list[tuple[int, ...]]
    if name == "key_padding_mask":
        allowed = [(scores[0], scores[-1]) if batched else (scores[-1],)]
    else:
        allowed = [tuple(scores[-2:]), (math.prod(scores[:-2]), *scores[-2:])]
    if tuple(torch_mask.shape) not in allowed:
        expected = " or ".join(str(tuple(shape)) for shape in allowed)
        remedy = "Sizes are batch, heads times batch, queries, keys."
        _check.complain(name, f"shape {tuple(torch_mask.shape)}", expected, remedy)
    if name == "key_padding_mask":
        return torch_mask[..., None, None, :]
    return torch_mask.unflatten(0, tuple(scores[:-2])) if torch_mask.dim() == 3 else torch_mask
