"""Linear algebra of batches of very small symmetric matrices: explicit for d = 1 and 2, otherwise by Cholesky.

Every function takes (..., d, d) and is an ordinary, differentiable tensor expression.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def matrices(flat: Tensor) -> Tensor:
    """(..., d d) as (..., d, d)."""
    return flat.reshape(*flat.shape[:-1], *[math.isqrt(flat.shape[-1])] * 2)


def inverse_and_logdet(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse (..., d, d) and the logarithm of the determinant (...) of positive definite matrices."""
    d = matrix.shape[-1]
    if d == 1:
        return matrix.reciprocal(), matrix[..., 0, 0].log()
    if d == 2:
        a, b, c = matrix[..., 0, 0], (matrix[..., 0, 1] + matrix[..., 1, 0]) / 2, matrix[..., 1, 1]
        det = a * c - b * b
        adjugate = matrices(torch.stack([c, -b, -b, a], -1))
        return adjugate / det[..., None, None], det.log()
    factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_inverse(factor), 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def cholesky(matrix: Tensor) -> Tensor:
    """The lower triangular L with L L^T = matrix."""
    d = matrix.shape[-1]
    if d == 1:
        return matrix.sqrt()
    if d == 2:
        a, b, c = matrix[..., 0, 0], (matrix[..., 0, 1] + matrix[..., 1, 0]) / 2, matrix[..., 1, 1]
        first = a.sqrt()
        low = b / first
        last = (c - low * low).sqrt()
        return matrices(torch.stack([first, torch.zeros_like(first), low, last], -1))
    factor: Tensor = torch.linalg.cholesky(matrix)
    return factor


def lower_inverse(lower: Tensor) -> Tensor:
    """The inverse of lower triangular matrices in one or two dimensions."""
    if lower.shape[-1] == 1:
        return lower.reciprocal()
    a, b, c = lower[..., 0, 0], lower[..., 1, 0], lower[..., 1, 1]
    return matrices(torch.stack([1 / a, torch.zeros_like(a), -b / (a * c), 1 / c], -1))


def axes_and_angle(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Square roots (long, short) of the eigenvalues of symmetric 2 x 2 matrices, and the angle of the long axis.

    Where the eigenvalues agree the angle is zero and the gradient of their difference is taken as zero.
    """
    a, b, c = matrix[..., 0, 0], (matrix[..., 0, 1] + matrix[..., 1, 0]) / 2, matrix[..., 1, 1]
    half_difference = (a - c) / 2
    square = half_difference.square() + b.square()
    circle = square == 0
    radius = square.masked_fill(circle, 1).sqrt().masked_fill(circle, 0)
    angle = torch.atan2(b, half_difference.masked_fill(circle, 1)) / 2
    long = (a + c) / 2 + radius
    # det / long keeps the digits of a thin ellipse that the difference of the two terms would lose.
    short = (a * c - b * b).clamp_min(torch.finfo(matrix.dtype).tiny) / long
    return long.sqrt(), short.sqrt(), angle


def transform(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows (..., N, d) times matrix (..., N or 1, d, d), row by row; one product where the matrix is shared."""
    if matrix.shape[-3] == 1:
        return rows @ matrix.squeeze(-3)
    return (rows.unsqueeze(-1) * matrix).sum(-2)


def congruence(middle: Tensor, matrix: Tensor) -> Tensor:
    """matrix' middle matrix, for middle (..., N, d, d) and matrix (..., N or 1, d, d), by a Kronecker square."""
    square = (matrix[..., :, None, :, None] * matrix[..., None, :, None, :]).flatten(-4, -3).flatten(-2)
    return matrices(transform(middle.flatten(-2), square))


def quadratic(x: Tensor, matrix: Tensor) -> Tensor:
    """x' M x for vectors (..., d) and symmetric matrices (..., d, d) that broadcast: (...)."""
    d = x.shape[-1]
    if d > 3:
        return ((x.unsqueeze(-2) @ matrix).squeeze(-2) * x).sum(-1)
    # Batched products of tiny matrices are slow; element-wise products of long vectors are not.
    coordinates = x.unbind(-1)
    total = coordinates[0].square() * matrix[..., 0, 0]
    for i in range(1, d):
        total = total + coordinates[i].square() * matrix[..., i, i]
        for j in range(i):
            total = total + 2 * coordinates[i] * coordinates[j] * matrix[..., i, j]
    return total
