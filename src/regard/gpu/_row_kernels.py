"""Triton kernels of sparsemax and entmax of rows: one program for a row that registers hold.

Arguments of all kernels: addresses, `n` entries in a row, and how the rows of a mask and of alphas lie: row r has its
place at (r // (b c)) * stride_a + (r // c % b) * stride_b + (r % c) * stride_c.
"""

import triton
import triton.language as tl

from regard.gpu._numbers import (
    BY_EDGE,
    BY_LOG,
    IS_ENTMAX15,
    IS_SPARSEMAX,
    IS_STEEP,
    log2_of,
    newton,
    parts_of,
    safe_delta,
)


@triton.jit
def place_of(row, b, c, stride_a, stride_b, stride_c):
    """Where the entries of a row begin in a tensor that is broadcast to all rows."""
    # Divisions of 32 bits: those of 64 are calls, around which registers spill.
    outer, middle, inner = row // (b * c), (row // c) % b, row % c
    return outer.to(tl.int64) * stride_a + middle.to(tl.int64) * stride_b + inner.to(tl.int64) * stride_c


@triton.jit
def scores_at(S, M, at, mask_at, mask_step, n, HAS_MASK: tl.constexpr):
    """Scores in float32, -inf where they are masked or past the end."""
    inside = at < n
    x = tl.load(S + at, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_MASK:
        seen = tl.load(M + mask_at + at.to(tl.int64) * mask_step, mask=inside, other=0)
        x = tl.where(seen != 0, x, -float("inf"))
    return x


@triton.jit
def start_of(count, mean, delta, KIND: tl.constexpr):
    """A lower bound of the threshold by Jensen's inequality, from the number and the mean of entries of the row."""
    if KIND == BY_LOG:
        low = mean * 0.0
    elif KIND == IS_SPARSEMAX:
        low = tl.maximum(mean - 1.0 / count, -1.0)
    elif KIND == IS_ENTMAX15:
        low = tl.maximum(mean - 1.0 / tl.sqrt(count), -1.0)
    else:
        low = tl.maximum(mean - tl.exp2(-delta * log2_of(count, count - 1.0)) / delta, -1.0 / delta)
    return low


@triton.jit
def climbed(z, low, delta, KIND: tl.constexpr):
    """The threshold of entries in registers by Newton's method from a lower bound, and the step that is left."""
    inverse = 1.0 / delta
    step = low * 0.0
    count = 0
    moving = True
    while moving:
        p, slope = parts_of(z - low, delta, inverse, KIND)
        total = tl.sum(p, 0)
        step = newton(total, tl.sum(slope, 0), delta, KIND)
        count += 1
        # Not for a row that is solved, whose step is below the spacing of numbers, or that has NaN.
        moving = (tl.abs(total - 1.0) > 4e-7) & (step > 0.0) & (low + step != low) & (count < 60)
        low = tl.where(moving, low + step, low)
    return low, step


@triton.jit
def halved(z, count, delta):
    """The same for alpha above 2 by halving intervals: of the logarithm of the threshold, which is negative, then of
    the part that is below the spacing of numbers there."""
    inverse = 1.0 / delta
    end = 0.0 * delta
    begin = tl.maximum(-delta * log2_of(count, count - 1.0), -118.0)
    for _step in range(40):
        middle = 0.5 * (begin + end)
        p, _ = parts_of(z + tl.exp2(middle) * inverse, delta, inverse, IS_STEEP)
        above = tl.sum(p, 0) > 1.0
        end = tl.where(above, middle, end)
        begin = tl.where(above, begin, middle)
    low = -tl.exp2(end) * inverse
    right = -low * 4.8e-7
    left = -right
    for _step in range(24):
        middle = 0.5 * (left + right)
        p, _ = parts_of((z - low) - middle, delta, inverse, IS_STEEP)
        above = tl.sum(p, 0) > 1.0
        left = tl.where(above, middle, left)
        right = tl.where(above, right, middle)
    return low, 0.5 * (left + right)


@triton.jit
def row_in_registers(x, P, at, n, top, delta, KIND: tl.constexpr):
    """Write the weights of a row whose scores are in registers; `top` is their maximum."""
    bad = (top != top) | (top == float("inf"))
    dead = top == -float("inf")
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    z = (x - tl.where(dead, 0.0, top)) * unit
    seen = x > -float("inf")
    count = tl.maximum(tl.sum(seen.to(tl.float32), 0), 1.0)
    if KIND == IS_STEEP:
        low, step = halved(z, count, delta)
    else:
        mean = tl.sum(tl.where(seen, z, 0.0), 0) / count
        low, step = climbed(z, start_of(count, mean, delta, KIND), delta, KIND)
    # The last step is below the spacing of numbers near `low`, but not of those near z - low.
    p, _ = parts_of((z - low) - step, delta, 1.0 / delta, KIND)
    p = p / tl.sum(p, 0)
    p = tl.where(dead, 0.0, tl.where(bad, float("nan"), p))
    tl.store(P + at, p.to(P.dtype.element_ty), mask=at < n)


@triton.jit
def entmax_row(
    S, M, A, P, FLAG, number, n, mask_b, mask_c, mask_sa, mask_sb, mask_sc, mask_step,
    alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc,
    KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_FLAG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of scores to weights, whole in registers. FLAG becomes 1 for NaN and +inf, 2 for a bad alpha."""
    row = tl.program_id(0)
    mask_at = place_of(row, mask_b, mask_c, mask_sa, mask_sb, mask_sc) if HAS_MASK else 0
    at = tl.arange(0, BLOCK)
    x = scores_at(S + row.to(tl.int64) * n, M, at, mask_at, mask_step, n, HAS_MASK)
    P += row.to(tl.int64) * n
    # A maximum of a device leaves NaN out.
    top = tl.where(tl.sum((x != x).to(tl.int32), 0) > 0, float("nan"), tl.max(x, 0))
    if HAS_FLAG and ((top != top) | (top == float("inf"))):
        tl.store(FLAG, 1)
    if not HAS_ALPHA:
        row_in_registers(x, P, at, n, top, number, KIND)
    else:
        alpha = tl.load(A + place_of(row, alpha_b, alpha_c, alpha_sa, alpha_sb, alpha_sc)).to(tl.float32)
        fine = (alpha > 0.0) & (alpha < float("inf"))
        if HAS_FLAG and (fine == 0):
            tl.store(FLAG, 2)
        top = tl.where(fine, top, float("nan"))
        delta = safe_delta(tl.where(fine, alpha, 1.5))
        if delta > 1.0:
            row_in_registers(x, P, at, n, top, delta, IS_STEEP)
        elif delta > 0.25:
            row_in_registers(x, P, at, n, top, delta, BY_EDGE)
        else:
            row_in_registers(x, P, at, n, top, delta, BY_LOG)
