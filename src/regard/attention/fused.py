"""The exact algorithms that `attend` chooses from. Shapes and values were checked before they come here."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from regard import _check
from regard.affinity import Concatenation, Factored
from regard.attention.sorted_sums import split_sum


def batch_of(*tensors: Tensor) -> torch.Size:
    """The leading dimensions of tensors (..., L, d), broadcast."""
    first = tensors[0].shape[:-2]
    if all(x.shape[:-2] == first for x in tensors[1:]):
        return first
    return torch.Size(torch.broadcast_shapes(*(x.shape[:-2] for x in tensors)))


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    diagonal: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax of `scale` times the inner products plus `bias`: one call that forms no scores (docs/math.md, 4.2).

    On a CPU that call silently forms them after all when there is no head axis, when the last stride is not one, or
    when queries and values differ in width; so they are given what it wants. What it makes of a query whose keys are
    all masked is not specified: here such a query sees every key, and then gets zeros.
    """
    width, out_width = q.shape[-1], v.shape[-1]
    # One width for all; and above 64 a multiple of 16, with which the kernel is a tenth faster.
    wide = max(width, out_width)
    wide = -(-wide // 16) * 16 if wide > 64 else wide
    if width < wide:
        q, k = pad(q, (0, wide - width)), pad(k, (0, wide - width))
    if out_width < wide:
        v = pad(v, (0, wide - out_width))
    batch = batch_of(q, k, v)
    q, k, v = (_four_axes(x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:])) for x in (q, k, v))
    lq, lk = q.shape[-2], k.shape[-2]
    if diagonal is not None and (mask is not None or bias is not None or diagonal != 0):
        allowed = torch.ones(lq, lk, dtype=torch.bool, device=q.device).tril(diagonal)
        mask, diagonal = (allowed if mask is None else mask & allowed), None
    dead = None
    mask = None if mask is None else _pairs(mask, batch, lk)
    if bias is not None:
        bias = _pairs(bias, batch, lk)
        bias = bias if mask is None else torch.where(mask, bias, -torch.inf)
        dead = bias.detach().amax(-1, keepdim=True) == -torch.inf
        mask = bias.masked_fill(dead, 0.0)
    elif mask is not None:
        dead = ~mask.any(-1, keepdim=True)
        mask = mask | dead
    c = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=diagonal is not None, scale=scale
    )
    if dead is not None:
        c = c.masked_fill(dead, 0.0)
    if out_width < wide:
        c = c[..., :out_width]
    return c if len(batch) == 2 else c.reshape(*batch, lq, out_width)


def _pairs(x: Tensor, batch: torch.Size, keys: int) -> Tensor:
    """A mask or a bias that broadcasts to (*batch, Lq, Lk), in four axes that do."""
    x = x[(None,) * (len(batch) + 2 - x.dim())]
    return _four_axes(x.expand(*(batch[:-1] if len(batch) > 2 else x.shape[:-3]), *x.shape[-3:-1], keys))


def _four_axes(x: Tensor) -> Tensor:
    """(..., L, d) as (B, H, L, d) with the last stride one; a single leading axis becomes B and not H."""
    if x.dim() < 4:
        x = x.unsqueeze(-3) if x.dim() == 3 else x[None, None]
    elif x.dim() > 4:
        x = x.flatten(0, -4)
    return x if x.stride(-1) == 1 else x.contiguous()


def associative(q: Tensor, k: Tensor, v: Tensor, affinity: Factored, mask: Tensor | None) -> Tensor:
    """Mean of a factored affinity: (q k') v = q (k' v) (docs/math.md, 4.3)."""
    q, k = affinity.factors(q, k)
    v, n = _participants(v, mask)
    return q @ (k.mT @ v) / n


def sorted_mean(q: Tensor, k: Tensor, v: Tensor, affinity: Concatenation, mask: Tensor | None) -> Tensor:
    """Mean of the concatenation affinity in O(L log L) (docs/math.md, 4.4)."""
    v, n = _participants(v, mask)
    a, b = _centred(*_halves(q, k, affinity))
    v, b = _same_batch(v, b.unsqueeze(-1))
    sum_v, sum_bv = split_sum(a, b.squeeze(-1), torch.cat([v, b * v], -1)).chunk(2, -1)
    return (a.unsqueeze(-1) * sum_v + sum_bv) / n


def sorted_softmax(q: Tensor, k: Tensor, v: Tensor, affinity: Concatenation, mask: Tensor | None) -> Tensor:
    """Softmax of the concatenation affinity in O(L log L) (docs/math.md, 4.5).

    A key past the split weighs exp(a + b), one before it exp(0) = 1. Both are divided by the largest weight.
    """
    part = torch.ones_like(k[..., :1]) if mask is None else _key_mask(mask, k.shape[-2]).to(k.dtype)
    a, b = _halves(q, k, affinity)
    top = torch.where(part.squeeze(-1) > 0, b, b.amin()).detach().amax(-1)
    a, b = a + top.unsqueeze(-1), b - top.unsqueeze(-1)
    v, b, part = _same_batch(v, b.unsqueeze(-1), part)
    one_v = torch.cat([part * v, part], -1)
    # The largest b that takes part is zero now; its derivative counts, so that this is not a clamp.
    grown = torch.where(part > 0, b, 0.0).exp() * one_v
    past_grown, past = split_sum(a, b.squeeze(-1), torch.cat([grown, one_v], -1)).chunk(2, -1)
    a = a.unsqueeze(-1)
    largest = a.detach().clamp(min=0)
    sums = (a - largest).exp() * past_grown + (-largest).exp() * (one_v.sum(-2, keepdim=True) - past)
    total = sums[..., -1:]
    return torch.where(total > 0, sums[..., :-1] / torch.where(total > 0, total, 1.0), 0.0)


def _halves(q: Tensor, k: Tensor, affinity: Concatenation) -> tuple[Tensor, Tensor]:
    """The two parts of the scores, which a sort would spoil silently if they were not finite."""
    a, b = affinity.halves(q, k)
    for part in (a, b):
        if _check.values_checked(part) and not bool(part.isfinite().all()):
            _check.complain("q, k", f"scores that overflow {a.dtype}", "finite scores", "Scale queries or keys down.")
    return a, b


def _key_mask(mask: Tensor, keys: int) -> Tensor:
    """A mask that broadcasts to (..., 1, Lk) as a column (..., Lk, 1)."""
    mask = mask[(None,) * max(0, 2 - mask.dim())].mT
    return mask.expand(*mask.shape[:-2], keys, 1)


def _participants(v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | int]:
    """The values with zeros where a key takes no part, and how many keys do, never zero."""
    if mask is None:
        return v, v.shape[-2]
    keys = _key_mask(mask, v.shape[-2])
    return v.where(keys, 0.0), keys.sum(-2, keepdim=True).clamp(min=1)


def _centred(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Move the mean of b over to a: the sum a + b is the same, and no digits are lost in products with b."""
    mean = b.detach().mean(-1, keepdim=True)
    return a + mean, b - mean


def _same_batch(*tensors: Tensor) -> tuple[Tensor, ...]:
    lead = batch_of(*tensors)
    return tuple(x.expand(*lead, *x.shape[-2:]) for x in tensors)
