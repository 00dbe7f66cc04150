"""Functions of numbers for Triton kernels, and what the kernels of rows and of attention share.

Weights are (delta y)^(1 / delta) where y = s - top - low is positive, with delta = alpha - 1 and the threshold `low` of
docs/math.md, 2.7 to 2.10; differences of neighbours of the edge are exact. Below alpha = 1.25 they are
(1 + delta y)^(1 / delta), so that nothing is lost near softmax. For alpha = 1.5 y is in units of two, and p = y^2.

A device's logarithm errs by 2^-22 in absolute terms near one, which the power 1 / delta magnifies: `log2_of` is its own
and errs by 1e-7 of the result. A maximum on a device ignores NaN: where NaN matters it is looked for. There are no
constants below the smallest normal float32, which would make a row float64, and no functions that libraries of one
vendor have.
"""

import triton
import triton.language as tl

IS_SPARSEMAX = tl.constexpr(2)  # alpha = 2
IS_ENTMAX15 = tl.constexpr(1)  # alpha = 1.5
BY_EDGE = tl.constexpr(0)  # alpha above 1.25, up to 2
BY_LOG = tl.constexpr(3)  # alpha up to 1.25, also one and below it
IS_STEEP = tl.constexpr(4)  # alpha above 2, where the norm is not convex
SMALLEST = tl.constexpr(1e-36)  # below it delta y counts as zero; normal in float32
SMALLEST_WEIGHT = tl.constexpr(2e-38)  # the derivatives of smaller weights are those of this one
TINY_DELTA = tl.constexpr(1e-7)  # that near, entmax equals softmax to rounding


@triton.jit
def log2_of(w, e):
    """The logarithm of normal numbers w > 0 to base 2. `e` is w - 1, exact where w is near one."""
    bits = w.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23  # the mantissa is between the roots of 1/2 and of 2
    m = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    t = tl.where(exponent == 0, e, m - 1.0) / (m + 1.0)
    z = t * t
    series = ((((0.1111111 * z + 0.14285715) * z + 0.2) * z + 0.33333334) * z + 1.0) * t
    return series * 2.8853900817779268 + exponent.to(tl.float32)


@triton.jit
def safe_delta(alpha):
    """alpha - 1, never zero."""
    delta = alpha - 1.0
    return tl.where(tl.abs(delta) < TINY_DELTA, TINY_DELTA, delta)


@triton.jit
def parts_of(y, delta, inverse, KIND: tl.constexpr):
    """The weights p and their slopes p^(2 - alpha) from differences to the threshold; `inverse` is 1 / delta."""
    if KIND == IS_SPARSEMAX:
        p = tl.where(y > 0.0, y, 0.0)
        slope = tl.where(y > 0.0, 1.0, 0.0)
    elif KIND == IS_ENTMAX15:
        slope = tl.where(y > 0.0, y, 0.0)
        p = slope * slope
    else:
        e = delta * y
        w = 1.0 + e if KIND == BY_LOG else e
        # Above alpha = 1 masked entries are at -inf, below it, where the order turns, at +inf.
        inside = (w > SMALLEST) & (w < float("inf"))
        safe = tl.where(inside, w, 1.0)
        if KIND == BY_LOG:
            log = log2_of(safe, tl.where(inside, e, 0.0))
        else:
            log = log2_of(safe, safe - 1.0)
        p = tl.where(inside, tl.exp2(log * inverse), 0.0)
        slope = p / safe
    return p, slope


@triton.jit
def newton(total, slopes, delta, KIND: tl.constexpr):
    """Newton's step in `low` on the norm: total (1 - total^-delta) / delta / slopes, from both sums."""
    if KIND == IS_SPARSEMAX:
        rise = total - 1.0
    elif KIND == IS_ENTMAX15:
        rise = total - tl.sqrt(total)
    else:
        a = -delta * log2_of(total, total - 1.0) * 0.6931471805599453
        small = -a * (1.0 + a * (0.5 + a * (0.16666667 + a * 0.041666668)))
        rise = total * tl.where(tl.abs(a) < 0.05, small, 1.0 - tl.exp2(a * 1.4426950408889634)) / delta
    return rise / slopes


@triton.jit
def bend_of(p, slope, share, delta, inside):
    """d/dalpha of the weights at fixed arguments (docs/math.md, 2.12), stable near one, in the unit of `slope`.

    `share` is p in that unit, `inside` says where p > 0.
    """
    safe = tl.where(inside, p, 1.0)
    log = log2_of(safe, safe - 1.0) * 0.6931471805599453
    x = -delta * log
    near = tl.abs(x) < 0.5
    small = tl.where(near, x, 0.0)
    series = 2.7557319e-07 * small + 2.7557319e-06
    series = series * small + 2.4801588e-05
    series = series * small + 0.00019841270
    series = series * small + 0.0013888889
    series = series * small + 0.0083333333
    series = series * small + 0.041666667
    series = series * small + 0.16666667
    series = series * small + 0.5
    far = (slope - share - share * x) / tl.where(near, 1.0, delta * delta)
    return tl.where(inside, -tl.where(near, share * log * log * series, far), 0.0)
