"""Triton kernels of attention with sparse maps, forward: a program for a tile of queries, weights never in memory.

Long rows: keys are in groups, one key of each tile in each. The four largest scores of every group stay in registers,
and the threshold of those alone is a lower bound of the row's (docs/math.md, 2.7 to 2.10). Where the fourth of every
group has no weight, nothing was left out, and the bound is the threshold. Otherwise Newton's method climbs from there,
and supports only shrink on the way. A tile of keys that can have no weight is skipped in every later pass and in the
backward pass.

Short rows: all scores of a tile of queries stay in registers.
"""

import triton
import triton.language as tl

from regard.gpu._attention_tile_kernels import head_of, scores_of_tile, store_rows, tile
from regard.gpu._numbers import BY_EDGE, BY_LOG, IS_ENTMAX15, IS_SPARSEMAX, newton, parts_of

KEPT_OF_GROUP = tl.constexpr(4)  # scores of a group that stay in registers


@triton.jit
def start_of_rows(y, delta, KIND: tl.constexpr):
    """The thresholds of rows in registers by Newton's method from below; y is at most 0."""
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
        higher = low + newton(total, tl.sum(slope, 1), delta, KIND)
        upward = (total > 1.0) & (higher > low)
        low = tl.where(upward, higher, low)
        steps += 1
        moving = (tl.max(upward.to(tl.int32), 0) > 0) & (steps < 40)
    return low


@triton.jit
def no_weight_below(low, delta, KIND: tl.constexpr):
    """The scores, from the top of each row, that have no weight: those up to here."""
    if KIND == BY_LOG:
        low = tl.where(delta > 0.0, low - 1.0 / delta, -float("inf"))
    return low


@triton.jit
def states_of(top, delta):
    """Which rows have keys and finite scores, which have no keys, which are not finite; and tops, zero elsewhere."""
    dead = top == -float("inf")
    bad = (top == float("inf")) | (delta != delta) | (delta <= -1.0) | (delta > 1.0)  # alpha must be in (0, 2]
    ok = (dead == 0) & (bad == 0)
    return ok, dead, bad, tl.where(ok, top, 0.0)


@triton.jit
def store_solved(O, TAU, TOTAL, context, total, base, low, ok, dead, bad, z, rows, wide_v, Lq, DV: tl.constexpr):
    """The context, and what the backward pass needs. Rows without weights have a threshold that no score exceeds."""
    share = tl.where(ok, 1.0 / total, tl.where(bad, float("nan"), 0.0))
    context = tl.where(ok[:, None], context * share[:, None], share[:, None])
    store_rows(O, context, rows, wide_v, z.to(tl.int64) * Lq, Lq, DV)
    at = z.to(tl.int64) * Lq + rows
    every = tl.num_programs(1).to(tl.int64) * Lq
    tl.store(TAU + at, tl.where(dead, float("inf"), tl.where(bad, float("nan"), base)), mask=rows < Lq)
    tl.store(TAU + every + at, tl.where(ok, low, 0.0), mask=rows < Lq)
    tl.store(TOTAL + at, share, mask=rows < Lq)


@triton.jit
def attend_tile(
    tensors, strides, O, TAU, TOTAL, NEAR, ACTIVE, H, Lq, Lk, scale, number, diagonal,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, PRECISION: tl.constexpr, TOLERANCE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The context of a tile of queries; threshold and sum of the weights of each; and which tiles have weight."""
    i, z = tl.program_id(0), tl.program_id(1)
    Q, K, V, M, B, delta = head_of(tensors, strides, z, H, number, HAS_ALPHA)
    inverse = 1.0 / delta
    rows, wide, wide_v = i * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    tiles_k = tl.cdiv(Lk, BN)
    place = (z.to(tl.int64) * tl.num_programs(0) + i) * tiles_k
    last = tl.minimum(Lk, (i + 1) * BM + diagonal)  # no query of the tile sees a key from here on
    tiles = tl.maximum(tl.cdiv(last, BN), 0)
    q = tile(Q, rows, wide, strides[0][2], strides[0][3], Lq, D)
    # First pass: the largest scores of groups. The last tiles come first: causal queries score them high.
    first = tl.full([BM, BN], -float("inf"), tl.float32)
    second = first
    third = first
    fourth = first
    top = tl.full([BM], -float("inf"), tl.float32)
    for back in range(0, tiles):
        j = tiles - 1 - back
        keys = j * BN + tl.arange(0, BN)
        k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
        s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
        s = tl.where(s != s, float("inf"), s)  # a maximum of a device leaves NaN out
        here = tl.max(s, 1)
        top = tl.maximum(top, here)
        # The distance to the top so far bounds the distance to the top.
        tl.store(NEAR + place + j, tl.max(tl.where(here > -float("inf"), here - top, -float("inf")), 0))
        smaller = tl.minimum(first, s)
        first = tl.maximum(first, s)
        least = tl.minimum(second, smaller)
        second = tl.maximum(second, smaller)
        fourth = tl.maximum(fourth, tl.minimum(third, least))
        third = tl.maximum(third, least)
    ok, dead, bad, base = states_of(top, delta)
    kept = tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), [BM, 4 * BN])
    low = start_of_rows(tl.where(ok[:, None], kept - base[:, None], -float("inf")), delta, KIND)
    # Nothing that was left out has weight, or nothing was left out: the threshold is known.
    known = (tl.max(fourth, 1) - base <= no_weight_below(low, delta, KIND)) | (tiles <= KEPT_OF_GROUP) | (ok == 0)
    tl.debug_barrier()  # NEAR is read by other threads than wrote it
    passes = 0
    moving = tl.min(known.to(tl.int32), 0) == 0
    while moving:
        total = tl.zeros([BM], tl.float32)
        slopes = tl.zeros([BM], tl.float32)
        count = tl.zeros([BM], tl.float32)
        least_y = tl.full([BM], float("inf"), tl.float32)
        reach = tl.min(tl.where(ok, no_weight_below(low, delta, KIND), float("inf")), 0)
        for j in range(0, tiles):
            if tl.load(NEAR + place + j) > reach:
                keys = j * BN + tl.arange(0, BN)
                k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
                s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
                y = (s - base[:, None]) - low[:, None]
                p, slope = parts_of(y, delta, inverse, KIND)
                weight = tl.sum(p, 1)
                total += weight
                slopes += tl.sum(slope, 1)
                if (KIND == IS_SPARSEMAX) | (KIND == IS_ENTMAX15):
                    least_y = tl.minimum(least_y, tl.min(tl.where(y > 0.0, y, float("inf")), 1))
                    count += tl.sum((y > 0.0).to(tl.float32), 1)
                if tl.max(tl.where(ok, weight, 0.0), 0) <= 0.0:  # thresholds only rise: no weight, ever
                    tl.store(NEAR + place + j, -float("inf"))
        step = newton(total, slopes, delta, KIND)
        # The step after the last look squares what is missing, and weights are divided by their sum.
        far = total > 1.0 + TOLERANCE
        if KIND == IS_SPARSEMAX:
            far = far & (step > least_y)  # otherwise nothing leaves the support: the step was exact
        if KIND == IS_ENTMAX15:
            # The root of the quadratic is exact if it leaves nothing out.
            mean = slopes / count
            room = 1.0 - (total - slopes * mean)
            root = mean - tl.sqrt(tl.maximum(room, 0.0) / count)
            exact = (room > 0.0) & (root <= least_y) & (total > 1.001)
            step = tl.where(exact, root, step)
            far = far & ((exact == 0) | (total > 16.0))  # where sums are large, digits were lost: once more
        low = tl.where((known == 0) & (step > 0.0), low + step, low)
        known = known | (far == 0) | (step <= 0.0)
        passes += 1
        moving = (tl.min(known.to(tl.int32), 0) == 0) & (passes < 40)
        tl.debug_barrier()
    reach = tl.min(tl.where(ok, no_weight_below(low, delta, KIND), float("inf")), 0)
    total = tl.zeros([BM], tl.float32)
    context = tl.zeros([BM, BV], tl.float32)
    for j in range(0, tiles):
        weighted = 0
        if tl.load(NEAR + place + j) > reach:
            keys = j * BN + tl.arange(0, BN)
            k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            p, _ = parts_of((s - base[:, None]) - low[:, None], delta, inverse, KIND)
            p = tl.where(ok[:, None], p, 0.0)
            weight = tl.sum(p, 1)
            total += weight
            if tl.max(weight, 0) > 0.0:
                weighted = 1
                v = tile(V, keys, wide_v, strides[2][2], strides[2][3], Lk, DV)
                context += tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        tl.store(ACTIVE + place + j, weighted)
    for j in range(tiles, tiles_k):
        tl.store(ACTIVE + place + j, 0)
    store_solved(O, TAU, TOTAL, context, total, base, low, ok, dead, bad, z, rows, wide_v, Lq, DV)


@triton.jit
def attend_short_rows(
    tensors, strides, O, TAU, TOTAL, ACTIVE, H, Lq, Lk, scale, number, diagonal,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, PRECISION: tl.constexpr, ALL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The same where all keys fit in one tile, of ALL keys: two products, as without sparsity."""
    i, z = tl.program_id(0), tl.program_id(1)
    Q, K, V, M, B, delta = head_of(tensors, strides, z, H, number, HAS_ALPHA)
    rows, wide, wide_v = i * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    keys = tl.arange(0, ALL)
    q = tile(Q, rows, wide, strides[0][2], strides[0][3], Lq, D)
    k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
    s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)
    s = tl.where(s != s, float("inf"), s)  # a maximum of a device leaves NaN out
    ok, dead, bad, base = states_of(tl.max(s, 1), delta)
    y = tl.where(ok[:, None], s - base[:, None], -float("inf"))
    low = start_of_rows(y, delta, KIND)
    p, _ = parts_of(y - low[:, None], delta, 1.0 / delta, KIND)
    p = tl.where(ok[:, None], p, 0.0)
    v = tile(V, keys, wide_v, strides[2][2], strides[2][3], Lk, DV)
    context = tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    weighted = tl.max(tl.max(tl.reshape(p, [BM, ALL // BN, BN]), 2), 0) > 0.0
    at = tl.arange(0, ALL // BN)
    tiles_k = tl.cdiv(Lk, BN)
    place = (z.to(tl.int64) * tl.num_programs(0) + i) * tiles_k
    tl.store(ACTIVE + place + at, weighted.to(tl.uint8), mask=at < tiles_k)
    store_solved(O, TAU, TOTAL, context, tl.sum(p, 1), base, low, ok, dead, bad, z, rows, wide_v, Lq, DV)
