"""A Triton kernel of the chords of continuous sparsemax in two dimensions: a lane for each ellipse.

It computes what `_block` of continuous/quadrature.py does with p = 1 and q = 1 or 2, in docs/math.md (5.13) to (5.16).
Sine, cosine, arcsine and the normal distribution are its own: those of a device bring float64, or belong to one vendor.
"""

import triton
import triton.language as tl

SHORT_AXIS = tl.constexpr(1.5)  # half axes below are integrated by the series, as in continuous/chord.py
ROOT = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)


@triton.jit
def natural_power(x):
    """By the power of two that devices have."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def arcsine(x):
    """Of numbers between -1 and 1."""
    size = tl.abs(x)
    far = size > 0.5
    z = tl.where(far, 0.5 - 0.5 * size, size * size)
    r = tl.where(far, tl.sqrt(z), size)
    y = ((((0.042163199 * z + 0.024181311) * z + 0.045470026) * z + 0.074953003) * z + 0.16666752) * z * r + r
    y = tl.where(far, 1.5707963267948966 - 2.0 * y, y)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def turn(x):
    """Sine and cosine between -pi / 2 and pi / 2."""
    z = x * x
    odd = 8.3333333e-3 + z * (-1.9841270e-4 + z * (2.7557319e-6 - z * 2.5052108e-8))
    sine = x + x * z * (-1.6666667e-1 + z * odd)
    tail = -1.3888889e-3 + z * (2.4801587e-5 + z * (-2.7557319e-7 + z * 2.0876757e-9))
    return sine, 1.0 + z * (-0.5 + z * (4.1666667e-2 + z * tail))


@triton.jit
def beyond(x):
    """exp(-x^2 / 2), and the mass of the normal distribution beyond |x| (Abramowitz and Stegun, 7.1.26)."""
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    height = natural_power(-0.5 * x * x)
    tail = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)
    return height, height * t * (0.127414796 + t * (-0.142248368 + t * tail))


@triton.jit
def by_closed_form(b, h, Q: tl.constexpr):
    """D_1, Y_1, D_q, Y_q, Z_q over h^(2n + 1) of chords with middle b and half length h, by (5.15)."""
    upper, above_mass = beyond(b + h)
    lower, below_mass = beyond(b - h)
    beside = above_mass - below_mass
    mass = tl.where(b + h < 0.0, beside, tl.where(b - h > 0.0, -beside, 1.0 - (above_mass + below_mass)))
    edge = h * ROOT * (upper + lower)
    moment = ROOT * (lower - upper) - b * mass
    flat = h * h
    inverse = 1.0 / h
    cube = inverse * inverse * inverse
    first = (flat - 1.0) * mass + b * moment + edge
    d, y = first * cube, -2.0 * moment * cube
    if Q == 1:
        d_q, y_q, z_q = d, y, 2.0 * (edge - mass) * cube
    else:
        following = -b * first - 2.0 * moment
        fifth = cube * inverse * inverse
        d_q = ((flat - 3.0) * first + b * following + 2.0 * flat * mass) * fifth
        y_q = -4.0 * following * fifth
        z_q = -4.0 * (3.0 * first - 2.0 * flat * mass) * fifth
    return d, y, d_q, y_q, z_q


@triton.jit
def by_series(b, h, C, terms, Q: tl.constexpr):
    """The same for short chords by (5.16); C has the coefficients for n = 1 and for n = q."""
    x = tl.minimum(tl.maximum(b, -13.0), 13.0)
    even = natural_power(-0.5 * x * x) * ROOT
    odd = x * even
    flat = h * h
    power = flat * 0.0 + 1.0
    d, y, d_q, y_q, z_q = flat * 0.0, flat * 0.0, flat * 0.0, flat * 0.0, flat * 0.0
    for k in range(0, terms):
        m = 2.0 * k
        second = x * odd - (m + 1.0) * even  # of degree 2 k + 2
        here, other = tl.load(C + k) * power, tl.load(C + terms + k) * power
        d += here * even
        y += here * odd
        d_q += other * even
        y_q += other * odd
        z_q += other * second
        odd = x * second - (m + 2.0) * odd
        even = second
        power *= flat
    return d, y, d_q, y_q, z_q


@triton.jit
def chords_of_ellipses(
    Y1, Y2, LONG, WIDTH, NODE, WEIGHT, C, OUT, count, nodes, terms, reach, ratio, Q: tl.constexpr, BLOCK: tl.constexpr
):
    """Six sums of each ellipse: value, slopes and second derivatives. `ratio`: the constant of q over that of p."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(Y1 + at, mask=inside, other=0.0)
    b = tl.load(Y2 + at, mask=inside, other=0.0)
    wide = tl.load(LONG + at, mask=inside, other=2.0)
    narrow = tl.load(WIDTH + at, mask=inside, other=2.0)
    low = arcsine(tl.minimum(tl.maximum((-reach - a) / wide, -1.0), 1.0))
    high = arcsine(tl.minimum(tl.maximum((reach - a) / wide, -1.0), 1.0))
    middle, half = 0.5 * (high + low), 0.5 * (high - low)
    short = narrow < SHORT_AXIS
    some_short = tl.max((short & inside).to(tl.int32), 0) > 0
    s0, s1, s2, s3, s4, s5 = a * 0.0, a * 0.0, a * 0.0, a * 0.0, a * 0.0, a * 0.0
    for j in range(0, nodes):
        sine, cosine = turn(middle + half * tl.load(NODE + j))
        cosine = tl.maximum(cosine, 1e-4)
        along, h = a + wide * sine, narrow * cosine
        d, y, d_q, y_q, z_q = by_closed_form(b, tl.where(short, SHORT_AXIS, h), Q)
        if some_short:
            e, z, e_q, w_q, x_q = by_series(b, tl.minimum(h, SHORT_AXIS), C, terms, Q)
            d, y, d_q = tl.where(short, e, d), tl.where(short, z, y), tl.where(short, e_q, d_q)
            y_q, z_q = tl.where(short, w_q, y_q), tl.where(short, x_q, z_q)
        square = cosine * cosine
        kernel = natural_power(-0.5 * along * along) * ROOT * tl.load(WEIGHT + j) * square * square
        value, slope = kernel * d, kernel * y
        value_along = value * along
        higher = kernel if Q == 1 else kernel * square * ratio
        direct = (along * along - 1.0) * higher * d_q
        if Q == 2:  # by parts on a large ellipse, as in continuous/quadrature.py
            direct = tl.where(wide > 2.0, -4.0 * ratio * value_along * sine / wide, direct)
        s0 += value
        s1 += value_along
        s2 += slope
        s3 += direct
        s4 += higher * y_q * along
        s5 += higher * z_q
    tl.store(OUT + 6 * at, s0 * half, mask=inside)
    tl.store(OUT + 6 * at + 1, s1 * half, mask=inside)
    tl.store(OUT + 6 * at + 2, s2 * half, mask=inside)
    tl.store(OUT + 6 * at + 3, s3 * half, mask=inside)
    tl.store(OUT + 6 * at + 4, s4 * half, mask=inside)
    tl.store(OUT + 6 * at + 5, s5 * half, mask=inside)
