"""The non-local block of Wang et al. (2018), equations (1) to (6), one position at a time.

f(x_i, x_j) is written out for each of the four pairwise functions, C(x) is the sum of f for the Gaussian pair and the
number of keys for the others.
"""

import math

import torch
from torch import Tensor


def project(layer: dict[str, Tensor], x: Tensor) -> Tensor:
    """A 1 x ... x 1 convolution: (C, *space) to (c, *space)."""
    y = torch.einsum("oc,cn->on", layer["weight"], x.flatten(1)) + layer["bias"].unsqueeze(1)
    return y.reshape(-1, *x.shape[1:])


def largest(x: Tensor, cell: tuple[int, ...]) -> Tensor:
    """Maximum over whole cells, those that do not fit dropped: (c, *space) to (c, *fewer)."""
    for axis, size in enumerate(cell, start=1):
        x = x.unfold(axis, size, size).amax(-1)
    return x


def pairwise(kind: str, q: Tensor, k: Tensor, w: Tensor | None, scale: float) -> Tensor:
    """f(x_i, x_j) for all pairs, explicit: (N, c) and (M, c) to (N, M)."""
    rows = []
    for q_i in q:
        if kind in ("gaussian", "embedded_gaussian"):
            rows.append(torch.exp(torch.stack([scale * (q_i * k_j).sum() for k_j in k])))
        elif kind == "dot_product":
            rows.append(torch.stack([scale * (q_i * k_j).sum() for k_j in k]))
        else:
            rows.append(torch.stack([torch.relu((w * torch.cat([q_i, k_j])).sum()) for k_j in k]))
    return torch.stack(rows)


def normaliser(kind: str, f: Tensor) -> Tensor:
    """C(x) of each row."""
    return f.sum(1) if kind in ("gaussian", "embedded_gaussian") else torch.full_like(f[:, 0], f.shape[1])


def response(
    x: Tensor,
    kind: str,
    layers: dict[str, dict[str, Tensor]],
    *,
    w: Tensor | None = None,
    scale: float | None = 1.0,
    cell: tuple[int, ...] | None = None,
    pool: str = "after",
) -> Tensor:
    """W_z y of one example, before the norm and the residual connection: (C, *space) to the same."""
    shrink = (lambda a: largest(a, cell)) if cell else (lambda a: a)
    if kind == "gaussian":
        q, k = x, shrink(x)
    else:
        q = project(layers["theta"], x)
        k = shrink(project(layers["phi"], x)) if pool == "after" else project(layers["phi"], shrink(x))
    v = shrink(project(layers["g"], x)) if pool == "after" else project(layers["g"], shrink(x))
    q, k, v = (a.flatten(1).mT for a in (q, k, v))
    f = pairwise(kind, q, k, w, 1 / math.sqrt(q.shape[1]) if scale is None else scale)
    y = (f / normaliser(kind, f).unsqueeze(1)) @ v
    return project(layers["out"], y.mT.reshape(-1, *x.shape[1:]))


def batch_norm(z: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """In training: by the mean and variance of each channel over examples and positions."""
    axes = [0, *range(2, z.dim())]
    shape = (1, -1, *[1] * (z.dim() - 2))
    centred = z - z.mean(axes, keepdim=True)
    scaled = centred / (centred.square().mean(axes, keepdim=True) + eps).sqrt()
    return scaled * weight.reshape(shape) + bias.reshape(shape)
