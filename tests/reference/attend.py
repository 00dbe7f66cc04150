"""The obvious program: all scores, the map, the product with the values."""

import torch
from torch import Tensor


def scores(affinity: object, q: Tensor, k: Tensor) -> Tensor:
    """Each affinity from its definition, one pair of vectors at a time in the last axes."""
    if type(affinity).__name__ == "SoftCap":
        return affinity.cap * torch.tanh(scores(affinity.of, q, k) / affinity.cap)
    q, k = q.unsqueeze(-2), k.unsqueeze(-3)
    match type(affinity).__name__:
        case "Dot":
            scale = q.shape[-1] ** -0.5 if affinity.scale is None else affinity.scale
            return scale * (q * k).sum(-1)
        case "Bilinear":
            return torch.einsum("...i,...ij,...j->...", q.expand(*q.shape), affinity.weight, k)
        case "Concatenation":
            return ((affinity.w_q * q).sum(-1) + (affinity.w_k * k).sum(-1)).clamp(min=0)
        case "Euclidean":
            return -(q - k).square().sum(-1) / affinity.tau
        case "Additive":
            return (affinity.v * torch.tanh(q + k)).sum(-1)
        case name:
            raise ValueError(f"no reference for {name}")


def causal_mask(queries: int, keys: int) -> Tensor:
    """The last query sees all keys, each one before it one key less."""
    return torch.tensor([[j - i <= keys - queries for j in range(keys)] for i in range(queries)])


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    affinity: object,
    map: object,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Expectation of the values, with every score in memory; a bias of -inf is a mask, a sink a last, lost column."""
    s = scores(affinity, q, k)
    if bias is not None:
        seen = bias > -torch.inf
        s = s + torch.where(seen, bias, 0.0)
        mask = seen.expand(s.shape) if mask is None else seen & mask
    if sink is not None:
        s = torch.cat([s, sink.expand(*s.shape[:-1], 1)], -1)
        if mask is not None:
            mask = torch.cat([mask.expand(*mask.shape[:-1], s.shape[-1] - 1), torch.ones_like(mask[..., :1])], -1)
    p = map(s, mask=mask)
    return p[..., : v.shape[-2]] @ v


def repeated(x: Tensor, groups: int) -> Tensor:
    """Each head as often as a group has heads."""
    return torch.cat([x[..., h : h + 1, :, :] for h in range(x.shape[-3]) for _ in range(groups)], -3)
