"""Wasserstein-2 distances between Gaussians."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from regard import _check
from regard._once import once
from regard.wasserstein._root import as_pairs, computed, lined_up, norm_between, power_mean, same_last


def gaussian_w2(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor, pairwise: bool = False) -> Tensor:
    """Wasserstein-2 distance between Gaussians with diagonal covariances.

    The distance is (6.11) in docs/math.md: Euclidean between means and standard deviations.

    `m1`, `m2`: means, (..., d).
    `s1`, `s2`: standard deviations, (..., d); one below zero raises ValueError.
    `pairwise`: all pairs, (..., Lq, d) against (..., Lk, d); default False.

    Returns (...), or (..., Lq, Lk) with `pairwise`. Differentiable in all four tensors, closed form; at distance zero
    the gradient is zero.

    >>> one, zero = torch.ones(2), torch.zeros(2)
    >>> gaussian_w2(zero, one, torch.tensor([3.0, 0.0]), 5 * one)
    tensor(6.4031)
    """
    (m1, s1, m2, s2), dtype = computed(m1=m1, s1=s1, m2=m2, s2=s2)
    for name, m, s in (("s1", m1, s1), ("s2", m2, s2)):
        if m.shape != s.shape:
            _check.complain(name, f"shape {tuple(s.shape)}", f"{tuple(m.shape)}, as its mean has", "Match them.")
        if _check.values_checked(s) and bool((s < 0).any()):
            _check.complain(name, "a negative entry", "standard deviations >= 0", "Use softplus or exp.")
    same_last("m1", m1, "m2", m2)
    lined_up("m1", m1, "m2", m2, pairwise, 1)
    return norm_between(torch.cat([m1, s1], -1), torch.cat([m2, s2], -1), 2, pairwise).to(dtype)


def bures_w2(m1: Tensor, c1: Tensor, m2: Tensor, c2: Tensor, pairwise: bool = False) -> Tensor:
    """Wasserstein-2 distance between Gaussians with full covariances.

    `m1`, `m2`: means, (..., d).
    `c1`, `c2`: covariances, (..., d, d), positive semi-definite; only their symmetric part counts.
    `pairwise`: all pairs, (..., Lq, d) against (..., Lk, d); takes d^2 numbers of memory per pair; default False.

    Returns (...), or (..., Lq, Lk) with `pairwise`. The square roots of the covariances are aligned by the optimal
    rotation (6.13), so that nothing cancels when they are almost equal. Differentiable once: the optimal rotation drops
    out of the gradient (6.14), and the gradient of a square root does not divide by differences of eigenvalues. At
    distance zero the gradient is zero.

    >>> c = torch.diag(torch.tensor([4.0, 9.0]))
    >>> bures_w2(torch.zeros(2), c, torch.zeros(2), torch.eye(2))
    tensor(2.2361)
    """
    (m1, c1, m2, c2), dtype = computed(m1=m1, c1=c1, m2=m2, c2=c2)
    for name, m, c in (("c1", m1, c1), ("c2", m2, c2)):
        if c.shape != (*m.shape, m.shape[-1]):
            expected = f"{(*m.shape, m.shape[-1])}, from the shape of its mean"
            _check.complain(name, f"shape {tuple(c.shape)}", expected, "Variances alone: use gaussian_w2.")
    roots = [_SquareRoot.apply(once(c, "bures_w2")) for c in (c1, c2)]
    return factored_w2(m1, roots[0], m2, roots[1], pairwise).to(dtype)


def factored_w2(m1: Tensor, l1: Tensor, m2: Tensor, l2: Tensor, pairwise: bool = False) -> Tensor:
    """`bures_w2` (6.13) for covariances L L^T.

    `m1`, `m2`: means, (..., d).
    `l1`, `l2`: factors L, (..., d, r), Cholesky's or any other.
    `pairwise`: as in `bures_w2`.

    >>> factored_w2(torch.zeros(1), torch.tensor([[2.0]]), torch.zeros(1), torch.tensor([[-1.0]]))
    tensor(1.)
    """
    (m1, l1, m2, l2), dtype = computed(m1=m1, l1=l1, m2=m2, l2=l2)
    l1, l2 = once(l1, "factored_w2"), once(l2, "factored_w2")
    same_last("m1", m1, "m2", m2)
    same_last("l1", l1, "l2", l2, axes=2)
    lined_up("m1", m1, "m2", m2, pairwise, 1)
    m1, m2 = as_pairs(m1, m2, pairwise, 1)
    l1, l2 = as_pairs(l1, l2, pairwise, 2)
    with torch.no_grad():
        rotation = _polar(l1.mT @ l2).mT
    factors = (l1 - l2 @ rotation).flatten(-2)
    means = (m1 - m2).expand(*factors.shape[:-1], m1.shape[-1])
    difference = torch.cat([means, factors], -1)
    return power_mean(difference, torch.ones_like(difference[..., :1]), 2).to(dtype)


def _polar(x: Tensor) -> Tensor:
    """The orthogonal matrix nearest to each x (..., r, r)."""
    if x.shape[-1] != 2:
        u, _, vh = torch.linalg.svd(x)
        nearest: Tensor = u @ vh
        return nearest
    # For r = 2 it is x plus or minus its cofactors, over the sum of the singular values.
    a, b, c, d = x.flatten(-2).unbind(-1)
    sign = torch.where(a * d < b * c, -1.0, 1.0).to(x.dtype)
    diagonal, off = a + sign * d, b - sign * c
    size = torch.hypot(diagonal, off)
    diagonal, off = torch.where(size > 0, diagonal / size, 1), torch.where(size > 0, off / size, 0)
    return torch.stack([diagonal, off, -sign * off, sign * diagonal], -1).reshape(x.shape)


class _SquareRoot(Function):
    """Square root of symmetric matrices. In their eigenbasis dS_ij = dC_ij / (s_i + s_j): no division by s_i - s_j."""

    @staticmethod
    def forward(ctx: Any, c: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh((c + c.mT) / 2)
        roots = values.clamp(min=0).sqrt()
        ctx.save_for_backward(roots, vectors)
        root: Tensor = (vectors * roots.unsqueeze(-2)) @ vectors.mT
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        roots, vectors = ctx.saved_tensors
        sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
        inner = vectors.mT @ ((grad + grad.mT) / 2) @ vectors
        inner = torch.where(sums > 0, inner / torch.where(sums > 0, sums, 1), 0)
        dc: Tensor = vectors @ inner @ vectors.mT
        return dc
