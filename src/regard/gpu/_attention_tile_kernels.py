"""What the Triton kernels of attention share: tiles of tensors, of scores and of weights, and where a head begins.

Tensors are (B, H, L, d) in any layout; a program has number z = b H + h. Scores are in units of two for alpha = 1.5.
`tensors` are q, k, v, the mask, the bias and the alphas (q in the place of one that is not there), `strides` those of
each, in the same order.
"""

import triton
import triton.language as tl

from regard.gpu._numbers import IS_ENTMAX15, parts_of, safe_delta


@triton.jit
def head_of(tensors, strides, z, H, number, HAS_ALPHA: tl.constexpr):
    """The tensors of one head, from its first entry, and alpha - 1."""
    b, h = (z // H).to(tl.int64), (z % H).to(tl.int64)
    Q = tensors[0] + b * strides[0][0] + h * strides[0][1]
    K = tensors[1] + b * strides[1][0] + h * strides[1][1]
    V = tensors[2] + b * strides[2][0] + h * strides[2][1]
    M = tensors[3] + b * strides[3][0] + h * strides[3][1]
    B = tensors[4] + b * strides[4][0] + h * strides[4][1]
    delta = number
    if HAS_ALPHA:
        delta = safe_delta(tl.load(tensors[5] + b * strides[5][0] + h * strides[5][1]).to(tl.float32))
    return Q, K, V, M, B, delta


@triton.jit
def tile(X, rows, columns, stride_l, stride_d, length, WIDTH: tl.constexpr):
    """A tile (rows, columns) of a matrix, zero outside of it."""
    inside = (rows < length)[:, None] & (columns < WIDTH)[None, :]
    at = rows.to(tl.int64)[:, None] * stride_l + columns.to(tl.int64)[None, :] * stride_d
    return tl.load(X + at, mask=inside, other=0.0)


@triton.jit
def scores_of_tile(
    q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of queries against keys, (rows, keys), -inf where a pair takes no part."""
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * unit)
    seen = (rows < Lq)[:, None] & (keys < Lk)[None, :]
    wide_rows, wide_keys = rows.to(tl.int64), keys.to(tl.int64)
    if HAS_BIAS:
        at = wide_rows[:, None] * strides[4][2] + wide_keys[None, :] * strides[4][3]
        s += tl.load(B + at, mask=seen, other=0.0).to(tl.float32) * unit
    if HAS_MASK:
        at = wide_rows[:, None] * strides[3][2] + wide_keys[None, :] * strides[3][3]
        seen = seen & (tl.load(M + at, mask=seen, other=0) != 0)
    seen = seen & (keys[None, :] <= rows[:, None] + diagonal)
    return tl.where(seen, s, -float("inf"))


@triton.jit
def solved_rows(TAU, TOTAL, heads, z, rows, Lq):
    """What the forward pass found for queries: the top, the threshold from it, the factor of the weights.

    `heads`: how many there are, of all examples together.
    """
    at = z.to(tl.int64) * Lq + rows
    every = (z.to(tl.int64) * 0 + heads) * Lq
    base = tl.load(TAU + at, mask=rows < Lq, other=float("inf"))
    low = tl.load(TAU + every + at, mask=rows < Lq, other=0.0)
    return base, low, tl.load(TOTAL + at, mask=rows < Lq, other=0.0)


@triton.jit
def parts_of_tile(s, base, low, share, delta, KIND: tl.constexpr):
    """Weights and slopes of a tile in the backward pass; NaN in rows that are not finite, zero in rows without keys."""
    p, slope = parts_of((s - base[:, None]) - low[:, None], delta, 1.0 / delta, KIND)
    return p * share[:, None], tl.where(share[:, None] == share[:, None], slope, share[:, None])


@triton.jit
def store_rows(X, values, rows, columns, begin, length, WIDTH: tl.constexpr):
    """Rows of a contiguous matrix, of which row `begin` is the first one here."""
    at = begin.to(tl.int64) + rows
    inside = (rows < length)[:, None] & (columns < WIDTH)[None, :]
    tl.store(X + at[:, None] * WIDTH + columns[None, :], values.to(X.dtype.element_ty), mask=inside)
