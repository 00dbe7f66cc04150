"""Triton kernels of attention with sparse maps: a program for a tile of queries (or of keys), weights never in memory.

Forward: the elementwise maximum of the tiles of scores is a row of maxima of groups, whose threshold is a lower bound
of the row's (docs/math.md, 2.7 to 2.10); Newton's method climbs from there, and supports only shrink on the way. A tile
of keys that can have no weight is skipped in every later pass and in the backward pass.

Tensors are (B, H, L, d) in any layout; a program has number z = b H + h. Scores are in units of two for alpha = 1.5.
"""

import triton
import triton.language as tl

from regard.gpu._numbers import BY_EDGE, BY_LOG, IS_ENTMAX15, IS_SPARSEMAX, bend_of, newton, parts_of, safe_delta


@triton.jit
def tile(X, rows, columns, stride_l, stride_d, length, WIDTH: tl.constexpr):
    """A tile (rows, columns) of a matrix, zero outside of it."""
    inside = (rows < length)[:, None] & (columns < WIDTH)[None, :]
    at = rows.to(tl.int64)[:, None] * stride_l + columns.to(tl.int64)[None, :] * stride_d
    return tl.load(X + at, mask=inside, other=0.0)


@triton.jit
def scores_of_tile(
    q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of queries against keys, (rows, keys), -inf where a pair takes no part."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * unit)
    seen = (rows < Lq)[:, None] & (keys < Lk)[None, :]
    wide_rows, wide_keys = rows.to(tl.int64), keys.to(tl.int64)
    if HAS_BIAS:
        bias = tl.load(B + wide_rows[:, None] * bias_l + wide_keys[None, :] * bias_k, mask=seen, other=0.0)
        s += bias.to(tl.float32) * unit
    if HAS_MASK:
        part = tl.load(M + wide_rows[:, None] * mask_l + wide_keys[None, :] * mask_k, mask=seen, other=0)
        seen = seen & (part != 0)
    seen = seen & (keys[None, :] <= rows[:, None] + diagonal)
    return tl.where(seen, s, -float("inf"))


@triton.jit
def start_of_rows(y, delta, KIND: tl.constexpr):
    """The thresholds of rows of maxima in registers, from which those of the whole rows are reached; y is at most 0."""
    inverse = 1.0 / delta
    if KIND == BY_LOG:
        low = tl.max(y, 1) * 0.0
    elif KIND == BY_EDGE:
        low = tl.max(y, 1) * 0.0 - inverse
    else:
        low = tl.max(y, 1) * 0.0 - 1.0
    steps = 0
    moving = True
    while moving:
        p, slope = parts_of(y - low[:, None], delta, inverse, KIND)
        total = tl.sum(p, 1)
        step = newton(total, tl.sum(slope, 1), delta, KIND)
        # From below, and not beyond: a bound that is a little low costs nothing.
        upward = (total > 1.0001) & (step > 0.0)
        low = tl.where(upward, low + step, low)
        steps += 1
        moving = (tl.max(upward.to(tl.int32), 0) > 0) & (steps < 30)
    return low


@triton.jit
def reach_of(tau, ok, delta, KIND: tl.constexpr):
    """Scores at most this far have no weight in any row; `tau` are thresholds from the top of each row."""
    if KIND == BY_LOG:
        tau = tl.where(delta > 0.0, tau - 1.0 / delta, -float("inf"))
    return tl.min(tl.where(ok, tau, float("inf")), 0)


@triton.jit
def attend_tile(
    Q, K, V, M, B, A, O, TAU, TOTAL, NEAR, ACTIVE,
    H, Lq, Lk, scale, number, diagonal,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, alpha_b, alpha_h,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, PRECISION: tl.constexpr, TOLERANCE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The context of a tile of queries; threshold and sum of the weights of each; and which tiles have weight."""
    i, z = tl.program_id(0), tl.program_id(1)
    b, h = (z // H).to(tl.int64), (z % H).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    M += b * mask_b + h * mask_h
    B += b * bias_b + h * bias_h
    delta = number
    if HAS_ALPHA:
        delta = safe_delta(tl.load(A + b * alpha_b + h * alpha_h).to(tl.float32))
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    inverse = 1.0 / delta
    rows, wide, wide_v = i * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    tiles_k = tl.cdiv(Lk, BN)
    place = (z.to(tl.int64) * tl.num_programs(0) + i) * tiles_k
    last = tl.minimum(Lk, (i + 1) * BM + diagonal)  # no query of the tile sees a key from here on
    tiles = tl.maximum(tl.cdiv(last, BN), 0)
    q = tile(Q, rows, wide, q_l, q_d, Lq, D)
    # First pass: maxima of groups of keys, one in each tile. The last tiles come first: causal queries score them high.
    heads = tl.full([BM, BN], -float("inf"), tl.float32)
    top = tl.full([BM], -float("inf"), tl.float32)
    for back in range(0, tiles):
        j = tiles - 1 - back
        keys = j * BN + tl.arange(0, BN)
        k = tile(K, keys, wide, k_l, k_d, Lk, D)
        s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
        s = tl.where(s != s, float("inf"), s)  # a maximum of a device leaves NaN out
        heads = tl.maximum(heads, s)
        here = tl.max(s, 1)
        top = tl.maximum(top, here)
        # The distance to the top so far bounds the distance to the top.
        tl.store(NEAR + place + j, tl.max(tl.where(here > -float("inf"), here - top, -float("inf")), 0))
    dead = top == -float("inf")
    bad = (top == float("inf")) | (delta != delta) | (delta <= -1.0) | (delta > 1.0)  # alpha must be in (0, 2]
    ok = (dead == 0) & (bad == 0)
    base = tl.where(ok, top, 0.0)
    low = start_of_rows(tl.where(ok[:, None], heads - base[:, None], -float("inf")), delta, KIND)
    tl.debug_barrier()  # NEAR is read by other threads than wrote it
    passes = 0
    moving = tl.max(ok.to(tl.int32), 0) > 0
    while moving:
        total = tl.zeros([BM], tl.float32)
        slopes = tl.zeros([BM], tl.float32)
        count = tl.zeros([BM], tl.float32)
        least = tl.full([BM], float("inf"), tl.float32)
        reach = reach_of(low, ok, delta, KIND)
        for j in range(0, tiles):
            if tl.load(NEAR + place + j) > reach:
                keys = j * BN + tl.arange(0, BN)
                k = tile(K, keys, wide, k_l, k_d, Lk, D)
                s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
                y = (s - base[:, None]) - low[:, None]
                p, slope = parts_of(y, delta, inverse, KIND)
                weight = tl.sum(p, 1)
                total += weight
                slopes += tl.sum(slope, 1)
                if (KIND == IS_SPARSEMAX) | (KIND == IS_ENTMAX15):
                    least = tl.minimum(least, tl.min(tl.where(y > 0.0, y, float("inf")), 1))
                    count += tl.sum((y > 0.0).to(tl.float32), 1)
                if tl.max(tl.where(ok, weight, 0.0), 0) <= 0.0:  # thresholds only rise: no weight, ever
                    tl.store(NEAR + place + j, -float("inf"))
        step = newton(total, slopes, delta, KIND)
        # The step after the last look squares what is missing, and weights are divided by their sum.
        far = total > 1.0 + TOLERANCE
        if KIND == IS_SPARSEMAX:
            far = far & (step > least)  # otherwise nothing leaves the support: the step was exact
        if KIND == IS_ENTMAX15:
            # The root of the quadratic is exact if it leaves nothing out.
            mean = slopes / count
            room = 1.0 - (total - slopes * mean)
            root = mean - tl.sqrt(tl.maximum(room, 0.0) / count)
            exact = (room > 0.0) & (root <= least) & (total > 1.001)
            step = tl.where(exact, root, step)
            far = far & ((exact == 0) | (total > 16.0))  # where sums are large, digits were lost: once more
        upward = ok & (step > 0.0)
        far = far & upward
        low = tl.where(upward, low + step, low)
        passes += 1
        moving = (tl.max(far.to(tl.int32), 0) > 0) & (passes < 40)
        tl.debug_barrier()
    reach = reach_of(low, ok, delta, KIND)
    total = tl.zeros([BM], tl.float32)
    context = tl.zeros([BM, BV], tl.float32)
    for j in range(0, tiles):
        weighted = 0
        if tl.load(NEAR + place + j) > reach:
            keys = j * BN + tl.arange(0, BN)
            k = tile(K, keys, wide, k_l, k_d, Lk, D)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            p, _ = parts_of((s - base[:, None]) - low[:, None], delta, inverse, KIND)
            p = tl.where(ok[:, None], p, 0.0)
            weight = tl.sum(p, 1)
            total += weight
            if tl.max(weight, 0) > 0.0:
                weighted = 1
                v = tile(V, keys, wide_v, v_l, v_d, Lk, DV)
                context += tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        tl.store(ACTIVE + place + j, weighted)
    for j in range(tiles, tiles_k):
        tl.store(ACTIVE + place + j, 0)
    share = tl.where(ok, 1.0 / total, tl.where(bad, float("nan"), 0.0))
    context = tl.where(ok[:, None], context * share[:, None], share[:, None])
    at = z.to(tl.int64) * Lq + rows
    tl.store(O + at[:, None] * DV + wide_v[None, :], context.to(O.dtype.element_ty), mask=(rows < Lq)[:, None] & (wide_v < DV)[None, :])  # noqa: E501  # fmt: skip
    # Rows without weights have a threshold that no score exceeds.
    tl.store(TAU + at, tl.where(dead, float("inf"), tl.where(bad, float("nan"), base)), mask=rows < Lq)
    tl.store(TAU + tl.num_programs(1).to(tl.int64) * Lq + at, tl.where(ok, low, 0.0), mask=rows < Lq)
    tl.store(TOTAL + at, share, mask=rows < Lq)


@triton.jit
def parts_of_tile(s, base, low, share, delta, KIND: tl.constexpr):
    """Weights and slopes of a tile in the backward pass; NaN in rows that are not finite, zero in rows without keys."""
    p, slope = parts_of((s - base[:, None]) - low[:, None], delta, 1.0 / delta, KIND)
    return p * share[:, None], tl.where(share[:, None] == share[:, None], slope, share[:, None])


@triton.jit
def attend_backward_queries(
    Q, K, V, M, B, A, G, TAU, TOTAL, ACTIVE, DQ, CENTRE, DA,
    H, Lq, Lk, scale, number, diagonal,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, alpha_b, alpha_h,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, LEARNED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries, w (g - <w, g> / sum w) times the keys; the centres; the gradient in alpha."""
    i, z = tl.program_id(0), tl.program_id(1)
    b, h = (z // H).to(tl.int64), (z % H).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    M += b * mask_b + h * mask_h
    B += b * bias_b + h * bias_h
    delta = number
    if HAS_ALPHA:
        delta = safe_delta(tl.load(A + b * alpha_b + h * alpha_h).to(tl.float32))
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    rows, wide, wide_v = i * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    tiles_k = tl.cdiv(Lk, BN)
    place = (z.to(tl.int64) * tl.num_programs(0) + i) * tiles_k
    at = z.to(tl.int64) * Lq + rows
    q = tile(Q, rows, wide, q_l, q_d, Lq, D)
    g = tile(G + z.to(tl.int64) * Lq * DV, rows, wide_v, DV, 1, Lq, DV)
    base = tl.load(TAU + at, mask=rows < Lq, other=float("inf"))
    low = tl.load(TAU + tl.num_programs(1).to(tl.int64) * Lq + at, mask=rows < Lq, other=0.0)
    share = tl.load(TOTAL + at, mask=rows < Lq, other=0.0)
    slopes = tl.zeros([BM], tl.float32)
    dots = tl.zeros([BM], tl.float32)
    for j in range(0, tiles_k):
        if tl.load(ACTIVE + place + j) != 0:
            keys = j * BN + tl.arange(0, BN)
            k = tile(K, keys, wide, k_l, k_d, Lk, D)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            _, w = parts_of_tile(s, base, low, share, delta, KIND)
            v = tile(V, keys, wide_v, v_l, v_d, Lk, DV)
            slopes += tl.sum(w, 1)
            dots += tl.sum(w * tl.dot(g, tl.trans(v), input_precision=PRECISION), 1)
    centre = tl.where(slopes != 0.0, dots / slopes, share * 0.0)
    tl.store(CENTRE + at, centre, mask=rows < Lq)
    dq = tl.zeros([BM, BD], tl.float32)
    bends = tl.zeros([BM], tl.float32)
    for j in range(0, tiles_k):
        if tl.load(ACTIVE + place + j) != 0:
            keys = j * BN + tl.arange(0, BN)
            k = tile(K, keys, wide, k_l, k_d, Lk, D)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            p, w = parts_of_tile(s, base, low, share, delta, KIND)
            v = tile(V, keys, wide_v, v_l, v_d, Lk, DV)
            centred = tl.dot(g, tl.trans(v), input_precision=PRECISION) - centre[:, None]
            dq += tl.dot((w * centred).to(k.dtype), k, input_precision=PRECISION)
            if LEARNED:
                bends += tl.sum(bend_of(p, w, p, delta, p > 1e-30) * centred, 1)
    inside = (rows < Lq)[:, None] & (wide < D)[None, :]
    tl.store(DQ + at[:, None] * D + wide[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=inside)
    if LEARNED:
        tl.store(DA + at, bends, mask=rows < Lq)


@triton.jit
def attend_backward_keys(
    Q, K, V, M, B, A, G, TAU, TOTAL, ACTIVE, CENTRE, DK, DVALUES,
    H, Lq, Lk, tiles_q, scale, number, diagonal,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d,
    mask_b, mask_h, mask_l, mask_k, bias_b, bias_h, bias_l, bias_k, alpha_b, alpha_h,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values: one program writes each, so that no sum depends on an order."""
    j, z = tl.program_id(0), tl.program_id(1)
    b, h = (z // H).to(tl.int64), (z % H).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    M += b * mask_b + h * mask_h
    B += b * bias_b + h * bias_h
    delta = number
    if HAS_ALPHA:
        delta = safe_delta(tl.load(A + b * alpha_b + h * alpha_h).to(tl.float32))
    unit = 0.5 if KIND == IS_ENTMAX15 else 1.0
    keys, wide, wide_v = j * BN + tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    tiles_k = tl.num_programs(0)
    k = tile(K, keys, wide, k_l, k_d, Lk, D)
    v = tile(V, keys, wide_v, v_l, v_d, Lk, DV)
    dk = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BV], tl.float32)
    for i in range(0, tiles_q):
        if tl.load(ACTIVE + (z.to(tl.int64) * tiles_q + i) * tiles_k + j) != 0:
            rows = i * BM + tl.arange(0, BM)
            at = z.to(tl.int64) * Lq + rows
            q = tile(Q, rows, wide, q_l, q_d, Lq, D)
            g = tile(G + z.to(tl.int64) * Lq * DV, rows, wide_v, DV, 1, Lq, DV)
            base = tl.load(TAU + at, mask=rows < Lq, other=float("inf"))
            low = tl.load(TAU + tl.num_programs(1).to(tl.int64) * Lq + at, mask=rows < Lq, other=0.0)
            share = tl.load(TOTAL + at, mask=rows < Lq, other=0.0)
            centre = tl.load(CENTRE + at, mask=rows < Lq, other=0.0)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, unit, diagonal, mask_l, mask_k, bias_l, bias_k, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            p, w = parts_of_tile(s, base, low, share, delta, KIND)
            dv += tl.dot(tl.trans(p.to(g.dtype)), g, input_precision=PRECISION)
            ds = w * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - centre[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
    at = z.to(tl.int64) * Lk + keys
    inside = keys < Lk
    tl.store(DK + at[:, None] * D + wide[None, :], (dk * scale).to(DK.dtype.element_ty), mask=inside[:, None] & (wide < D)[None, :])  # noqa: E501  # fmt: skip
    tl.store(DVALUES + at[:, None] * DV + wide_v[None, :], dv.to(DVALUES.dtype.element_ty), mask=inside[:, None] & (wide_v < DV)[None, :])  # noqa: E501  # fmt: skip
