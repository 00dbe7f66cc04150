"""Attention modules as loops over heads and plain sums."""

import torch
from torch import Tensor


def multihead(layer: object, affinity: object, map: object, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """A head at a time; `affinity(h)` and `map(h)` give those of head h, and `mask` (Lq, Lk) is True to take part."""
    w_q, w_k, w_v = layer.in_proj_weight.chunk(3)
    b_q, b_k, b_v = layer.in_proj_bias.chunk(3)
    width = layer.head_dim
    heads = []
    for h in range(layer.num_heads):
        rows = slice(h * width, (h + 1) * width)
        q, k, v = (x @ w[rows].T + b[rows] for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (key, w_v, b_v)))
        heads.append(map(h)(affinity(h).scores(q, k), mask=mask) @ v)
    return torch.cat(heads, -1) @ layer.out_proj.weight.T + layer.out_proj.bias


def pool(layer: object, map: object, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """AttFlat on one set of features x (L, dim), a glimpse at a time."""
    first, _, _, second = layer.score
    hidden = torch.relu(x @ first.weight.T + first.bias)
    weights = [map(g)(hidden @ second.weight[g] + second.bias[g], mask=mask) for g in range(layer.glimpses)]
    glimpses = [sum(p[i] * x[i] for i in range(len(x))) for p in weights]
    return torch.cat(glimpses) @ layer.merge.weight.T + layer.merge.bias, torch.stack(weights)
