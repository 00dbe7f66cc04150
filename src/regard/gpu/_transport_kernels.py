"""A Triton kernel of Sinkhorn's iterations: rows scaled and columns summed in one sweep over the scores.

The plan is exp((s + f + g) / eps). A sweep takes the potentials g of the columns, finds those of the rows, and gives
the logarithms of the sums of the columns of the plan, from which the next g follows: scores are read once for an
iteration, and no matrix is written before the last. Sums are kept beside their largest term, so that nothing
underflows, whatever the scores. g is a sum of two numbers, and the rounding of s + g is carried along: divided by a
small eps it would show.
"""

import triton
import triton.language as tl

from regard.gpu._numbers import log2_of

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sinkhorn_sweep(
    S, G, REST, A, TOP, BASE, TOTAL, PEAK, SUM, P, rows, columns, inverse,
    FIRST: tl.constexpr, WRITE: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows of a matrix of scores: their potentials, and logarithms of what they add to the sums of columns.

    G + REST: potentials of the columns, (matrices, columns). A: masses of the rows. `inverse`: 1 / eps.
    BASE, TOTAL: of each row the largest s + g, and the sum of exp((s + g - base) / eps).
    PEAK, SUM: (matrices, programs, columns); the sums are SUM 2^PEAK.
    With FIRST rows are not scaled, and TOP, one number for each matrix, stands for g. With WRITE P becomes the plan.
    """
    i, matrix = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    begin = matrix.to(tl.int64) * rows
    high = tl.full([BLOCK], 0.0, tl.float32)
    low = tl.full([BLOCK], 0.0, tl.float32)
    if FIRST:
        top = tl.load(TOP + matrix)
    else:
        high = tl.load(G + matrix.to(tl.int64) * columns + at, mask=inside, other=-float("inf"))
        low = tl.load(REST + matrix.to(tl.int64) * columns + at, mask=inside, other=0.0)
    peak = tl.full([BLOCK], -float("inf"), tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for step in range(0, tl.minimum(STEPS, tl.cdiv(rows - i * STEPS * ROWS, ROWS))):
        row = (i * STEPS + step) * ROWS + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & inside[None, :]
        place = (begin + row)[:, None] * columns + at[None, :]
        s = tl.load(S + place, mask=here, other=-float("inf"))
        mass = tl.load(A + begin + row, mask=row < rows, other=0.0)
        if FIRST:
            logs = tl.where((mass > 0.0)[:, None], (s - top) * (inverse * LOG2_E), -float("inf"))
        else:
            y = s + high[None, :]
            part = y - s
            lost = (s - (y - part)) + (high[None, :] - part) + low[None, :]
            lost = tl.where(y > -float("inf"), lost, 0.0)
            base = tl.max(y, 1)
            base = tl.where(base > -float("inf"), base, 0.0)
            z = ((y - base[:, None]) + lost) * (inverse * LOG2_E)
            total = tl.sum(tl.exp2(z), 1)
            alive = (mass > 0.0) & (total > 0.0)
            ratio = tl.where(alive, mass, 1.0) / tl.where(alive, total, 1.0)
            share = tl.where(total == total, log2_of(ratio, ratio - 1.0), float("nan"))
            logs = tl.where((mass > 0.0)[:, None], z + share[:, None], -float("inf"))
            tl.store(BASE + begin + row, base, mask=row < rows)
            tl.store(TOTAL + begin + row, total, mask=row < rows)
            if WRITE:
                tl.store(P + place, tl.exp2(logs), mask=here)
        higher = tl.maximum(peak, tl.max(logs, 0))
        shift = tl.where(higher > -float("inf"), higher, 0.0)
        sums = sums * tl.exp2(peak - shift) + tl.sum(tl.exp2(logs - shift[None, :]), 0)
        peak = higher
    out = (matrix.to(tl.int64) * tl.num_programs(0) + i) * columns + at
    tl.store(PEAK + out, peak, mask=inside)
    tl.store(SUM + out, sums, mask=inside)
