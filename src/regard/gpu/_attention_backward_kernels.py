"""Triton kernels of the gradients of attention with sparse maps: each over tiles with weight alone.

One program writes each entry, in an order of sums that is fixed: there are no atomic additions.
"""

import triton
import triton.language as tl

from regard.gpu._attention_tile_kernels import head_of, parts_of_tile, scores_of_tile, solved_rows, store_rows, tile
from regard.gpu._numbers import bend_of


@triton.jit
def attend_backward_queries(
    tensors, strides, G, TAU, TOTAL, ACTIVE, DQ, CENTRE, DA, H, Lq, Lk, scale, number, diagonal,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, LEARNED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries, w (g - <w, g> / sum w) times the keys; the centres; the gradient in alpha."""
    i, z = tl.program_id(0), tl.program_id(1)
    Q, K, V, M, B, delta = head_of(tensors, strides, z, H, number, HAS_ALPHA)
    rows, wide, wide_v = i * BM + tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    tiles_k = tl.cdiv(Lk, BN)
    place = (z.to(tl.int64) * tl.num_programs(0) + i) * tiles_k
    at = z.to(tl.int64) * Lq + rows
    q = tile(Q, rows, wide, strides[0][2], strides[0][3], Lq, D)
    g = tile(G + z.to(tl.int64) * Lq * DV, rows, wide_v, DV, 1, Lq, DV)
    base, low, share = solved_rows(TAU, TOTAL, tl.num_programs(1), z, rows, Lq)
    slopes = tl.zeros([BM], tl.float32)
    dots = tl.zeros([BM], tl.float32)
    for j in range(0, tiles_k):
        if tl.load(ACTIVE + place + j) != 0:
            keys = j * BN + tl.arange(0, BN)
            k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            _, w = parts_of_tile(s, base, low, share, delta, KIND)
            v = tile(V, keys, wide_v, strides[2][2], strides[2][3], Lk, DV)
            slopes += tl.sum(w, 1)
            dots += tl.sum(w * tl.dot(g, tl.trans(v), input_precision=PRECISION), 1)
    centre = tl.where(slopes != 0.0, dots / slopes, share * 0.0)
    tl.store(CENTRE + at, centre, mask=rows < Lq)
    dq = tl.zeros([BM, BD], tl.float32)
    bends = tl.zeros([BM], tl.float32)
    for j in range(0, tiles_k):
        if tl.load(ACTIVE + place + j) != 0:
            keys = j * BN + tl.arange(0, BN)
            k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            p, w = parts_of_tile(s, base, low, share, delta, KIND)
            v = tile(V, keys, wide_v, strides[2][2], strides[2][3], Lk, DV)
            centred = tl.dot(g, tl.trans(v), input_precision=PRECISION) - centre[:, None]
            dq += tl.dot((w * centred).to(k.dtype), k, input_precision=PRECISION)
            if LEARNED:
                bends += tl.sum(bend_of(p, w, p, delta, p > 1e-30) * centred, 1)
    store_rows(DQ, dq * scale, rows, wide, z.to(tl.int64) * Lq, Lq, D)
    if LEARNED:
        tl.store(DA + at, bends, mask=rows < Lq)


@triton.jit
def attend_backward_keys(
    tensors, strides, G, TAU, TOTAL, ACTIVE, CENTRE, DK, DVALUES, H, Lq, Lk, scale, number, diagonal, tiles_q,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values."""
    j, z = tl.program_id(0), tl.program_id(1)
    Q, K, V, M, B, delta = head_of(tensors, strides, z, H, number, HAS_ALPHA)
    keys, wide, wide_v = j * BN + tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    tiles_k = tl.num_programs(0)
    k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
    v = tile(V, keys, wide_v, strides[2][2], strides[2][3], Lk, DV)
    dk = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BV], tl.float32)
    for i in range(0, tiles_q):
        if tl.load(ACTIVE + (z.to(tl.int64) * tiles_q + i) * tiles_k + j) != 0:
            rows = i * BM + tl.arange(0, BM)
            q = tile(Q, rows, wide, strides[0][2], strides[0][3], Lq, D)
            g = tile(G + z.to(tl.int64) * Lq * DV, rows, wide_v, DV, 1, Lq, DV)
            base, low, share = solved_rows(TAU, TOTAL, tl.num_programs(1), z, rows, Lq)
            centre = tl.load(CENTRE + z.to(tl.int64) * Lq + rows, mask=rows < Lq, other=0.0)
            s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
            p, w = parts_of_tile(s, base, low, share, delta, KIND)
            dv += tl.dot(tl.trans(p.to(g.dtype)), g, input_precision=PRECISION)
            ds = w * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - centre[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
    store_rows(DK, dk * scale, keys, wide, z.to(tl.int64) * Lk, Lk, D)
    store_rows(DVALUES, dv, keys, wide_v, z.to(tl.int64) * Lk, Lk, DV)


@triton.jit
def attend_backward_bias(
    tensors, strides, G, TAU, TOTAL, ACTIVE, CENTRE, DB, H, Lq, Lk, scale, number, diagonal,
    tiles_q, tiles_k, all_heads, own_heads, shared_batch, shared_heads,
    D: tl.constexpr, DV: tl.constexpr, KIND: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, PRECISION: tl.constexpr, OF_QUERIES: tl.constexpr, OF_KEYS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of the bias: that of the scores, summed over whatever shares an entry.

    OF_QUERIES, OF_KEYS: whether the bias differs among queries, and among keys. One of its heads is that of
    `shared_batch` examples and `shared_heads` heads, which follow one another.
    """
    at, part = tl.program_id(0), tl.program_id(1)
    first_q, last_q, first_k, last_k = 0, tiles_q, 0, tiles_k
    if OF_QUERIES and OF_KEYS:
        first_q, first_k = at // tiles_k, at % tiles_k
        last_q, last_k = first_q + 1, first_k + 1
    elif OF_QUERIES:
        first_q, last_q = at, at + 1
    elif OF_KEYS:
        first_k, last_k = at, at + 1
    wide, wide_v = tl.arange(0, BD), tl.arange(0, BV)
    db = tl.zeros([BM, BN], tl.float32)
    for n in range(0, shared_batch * shared_heads):
        b = part // own_heads * shared_batch + n // shared_heads
        z = b * H + part % own_heads * shared_heads + n % shared_heads
        Q, K, V, M, B, delta = head_of(tensors, strides, z, H, number, HAS_ALPHA)
        for i in range(first_q, last_q):
            rows = i * BM + tl.arange(0, BM)
            base, low, share = solved_rows(TAU, TOTAL, all_heads, z, rows, Lq)
            centre = tl.load(CENTRE + z.to(tl.int64) * Lq + rows, mask=rows < Lq, other=0.0)
            for j in range(first_k, last_k):
                if tl.load(ACTIVE + (z.to(tl.int64) * tiles_q + i) * tiles_k + j) != 0:
                    keys = j * BN + tl.arange(0, BN)
                    q = tile(Q, rows, wide, strides[0][2], strides[0][3], Lq, D)
                    k = tile(K, keys, wide, strides[1][2], strides[1][3], Lk, D)
                    v = tile(V, keys, wide_v, strides[2][2], strides[2][3], Lk, DV)
                    g = tile(G + z.to(tl.int64) * Lq * DV, rows, wide_v, DV, 1, Lq, DV)
                    s = scores_of_tile(q, k, M, B, rows, keys, Lq, Lk, scale, diagonal, strides, KIND, HAS_MASK, HAS_BIAS, PRECISION)  # noqa: E501  # fmt: skip
                    _, w = parts_of_tile(s, base, low, share, delta, KIND)
                    db += w * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - centre[:, None])
    rows, keys = first_q * BM + tl.arange(0, BM), first_k * BN + tl.arange(0, BN)
    if OF_QUERIES and OF_KEYS:
        to = (part.to(tl.int64) * Lq + rows)[:, None] * Lk + keys[None, :]
        tl.store(DB + to, db.to(DB.dtype.element_ty), mask=(rows < Lq)[:, None] & (keys < Lk)[None, :])
    elif OF_QUERIES:
        tl.store(DB + part.to(tl.int64) * Lq + rows, tl.sum(db, 1).to(DB.dtype.element_ty), mask=rows < Lq)
    elif OF_KEYS:
        tl.store(DB + part.to(tl.int64) * Lk + keys, tl.sum(db, 0).to(DB.dtype.element_ty), mask=keys < Lk)
    else:
        tl.store(DB + part, tl.sum(tl.sum(db, 1), 0).to(DB.dtype.element_ty))
