"""`tvmax`: sparsemax with a total-variation penalty on a grid."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import _check
from regard.maps.entmax import sparsemax
from regard.maps.tvmax.smoothing import smoothed


def tvmax(s: Tensor, gamma: float | Tensor, mask: Tensor | None = None, shape: tuple[int, int] | None = None) -> Tensor:
    """Sparse attention over an image whose neighbouring cells tend to share one weight.

    Solves equation (2.5.1) of docs/math.md on each grid,

        argmin over the simplex of  1/2 |p - s|^2 + gamma sum over 4-neighbours |p_i - p_j|,

    as the sparsemax of total-variation smoothing (2.5.3): `gamma = 0` is sparsemax, and a large `gamma` makes the
    weights constant on each connected part of the grid. The duality gap (2.5.5) bounds the error of the smoothing by
    1e-6, and by 1e-6 of half the range of the scores where that range is small (1e-10 of it where it is beyond 1e4);
    a grid that is not certified after 20,000 iterations gives a RuntimeWarning.

    `s`: scores (..., h, w), or (..., h * w) with `shape`.
    `gamma`: a number >= 0, or a tensor with one value per grid, broadcasts to `s` with 1 on the axes of a grid.
    `mask`: boolean, broadcasts to `s`; a cell that is False has weight zero and no part in the variation; default None.
    `shape`: (h, w) of a flat grid: `functools.partial(tvmax, gamma=0.1, shape=(14, 14))` is a map of rows.

    The result has the shape and dtype of `s`.

    Differentiable any number of times in `s` and `gamma`, in closed form: given the regions of equal cells, which
    do not change around almost every `s`, smoothing is a mean over regions plus gamma times a constant (2.5.7).

    Edge cases: a score of -inf is a masked cell; a grid that is masked entirely gives zeros and zero gradients; NaN and
    +inf are errors. At gamma = 0 the gradient in `s` is that of sparsemax.

    >>> s = torch.tensor([[1.0, 0.8, 0.0], [0.7, 0.9, 0.4]])
    >>> tvmax(s, gamma=0.0)
    tensor([[0.4000, 0.2000, 0.0000],
            [0.1000, 0.3000, 0.0000]])
    >>> tvmax(s, gamma=0.1)
    tensor([[0.2500, 0.2500, 0.0000],
            [0.2500, 0.2500, 0.0000]])
    >>> tvmax(s.flatten(), gamma=0.1, shape=(2, 3))
    tensor([0.2500, 0.2500, 0.0000, 0.2500, 0.2500, 0.0000])
    """
    _check.floating("s", s, min_dims=2 if shape is None else 1)
    if mask is not None:
        _check.boolean_mask(mask, s.shape)
    if shape is None:
        p = _rows(s.flatten(-2), _flat_gamma(gamma, s, 2), _flat_mask(mask, s), s.shape[-1])
        return p.reshape(s.shape)
    width = _check.grid_shape(shape, s.shape[-1])[1]
    return _rows(s, _flat_gamma(gamma, s, 1), mask, width)


def tvmax_with_sink(s: Tensor, gamma: float | Tensor, mask: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """`tvmax` of flat grids with one more score in front, (..., 1 + h * w), which has no neighbours (4.8).

    Its smoothed score is the score itself, and the simplex has one more corner: the sparsemax of all of them.

    `gamma`, `mask`, `shape`: as in `tvmax`.
    """
    _check.floating("s", s, min_dims=1)
    cells, dtype = s[..., 1:], s.dtype
    width = _check.grid_shape(shape, cells.shape[-1])[1]
    if mask is not None:
        _check.boolean_mask(mask, s.shape)
        mask = mask.expand(s.shape)
    smooth, middle = _smoothed(cells, _flat_gamma(gamma, cells, 1), None if mask is None else mask[..., 1:], width)
    sink = s[..., :1].to(smooth.dtype) - middle
    if mask is not None:
        sink = sink.masked_fill(~mask[..., :1], -torch.inf)
    return sparsemax(torch.cat([sink, smooth], -1)).to(dtype)


def _flat_gamma(gamma: float | Tensor, s: Tensor, grid_axes: int) -> float | Tensor:
    """`gamma` checked and, if a tensor, with one axis of size 1 in place of those of the grid."""
    if not isinstance(gamma, Tensor):
        return _check.number("gamma", gamma, at_least=0, remedy="gamma = 0 is sparsemax.")
    _check.floating("gamma", gamma)
    one_per_grid = torch.Size((*s.shape[: s.dim() - grid_axes], *(1,) * grid_axes))
    _check.broadcasts("gamma", gamma, one_per_grid, "one number per grid")
    _check.nonnegative("gamma", gamma, "Keep a learnable one positive with softplus.")
    return gamma.squeeze(-1) if grid_axes == 2 and gamma.dim() > 0 else gamma


def _flat_mask(mask: Tensor | None, s: Tensor) -> Tensor | None:
    return None if mask is None else mask.expand(s.shape).flatten(-2)


def _rows(s: Tensor, gamma: float | Tensor, mask: Tensor | None, width: int) -> Tensor:
    """TVmax with the grid flattened in the last axis."""
    return sparsemax(_smoothed(s, gamma, mask, width)[0]).to(s.dtype)


def _smoothed(s: Tensor, gamma: float | Tensor, mask: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """`smoothed` of checked scores; half precision in single."""
    _check.axis("s", s, -1)
    return smoothed(s.float() if s.dtype in (torch.float16, torch.bfloat16) else s, gamma, mask, width)
