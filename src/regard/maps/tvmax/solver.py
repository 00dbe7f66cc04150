"""The regions that total variation fuses on a grid, found by a dual solver with a certificate.

Legend: B grids, n = h * w cells in rows of w. An edge is stored at its left or upper cell: tensors of edges are
(2, B, n), first the edges to the right, then those downwards. An edge that does not exist (at the border of the
grid, or beside a masked cell) has capacity zero, so all grids of a batch can be shifted as one long row.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

STEP = 1.3 / 8  # 8 bounds the largest eigenvalue of D D^T; a step of 1/8 takes a fifth more iterations
CHECK_EVERY = 20
MOST_ITERATIONS = 20_000
TOLERANCE = 1e-6


def solve(s: Tensor, gamma: Tensor, mask: Tensor, w: int) -> tuple[Tensor, Tensor]:
    """Regions and pull of one chunk, s (B, n): normalise, iterate on the dual, retire grids as they are certified."""
    B, n = s.shape
    work = _working_dtype(s.device)
    s, cap, half, bad = _normalised(s.to(work), gamma.to(work), mask)
    edges = _edges(mask, w)
    eps = torch.finfo(work).eps
    # 1e-6 of the scores' range and, for large scores, 1e-6 in absolute terms, as far as the arithmetic allows.
    tolerance = (TOLERANCE / half.clamp(min=1)).clamp(min=max(1e-10, 64 * eps))

    labels = torch.arange(n, device=s.device).repeat(B, 1)
    pull = torch.zeros_like(s)
    alive = torch.arange(B, device=s.device)
    u = torch.zeros(2, B, n, dtype=work, device=s.device)
    y, upper = u.clone(), edges * cap

    for iteration in range(0, MOST_ITERATIONS + 1, CHECK_EVERY):
        last = iteration + CHECK_EVERY > MOST_ITERATIONS
        q = _primal(s, u, w)
        residual = (u + _differences(q, w)).clamp_(-upper, upper).sub_(u).abs_().amax((0, 2))
        # A grid with a larger residual cannot pass the certificate: its regions are not computed.
        some = ((residual <= 2.1 * tolerance[:, 0]) | last).nonzero()[:, 0]
        if len(some) > 0:
            regions, forces, gap = _polished(s[some], cap[some], u[:, some], edges[:, some], q[some], w)
            error = (2 * gap).sqrt()
            done = error <= tolerance[some, 0]
            if last and not done.all():
                warn((error * half[some, 0])[~done])
                done.fill_(True)
            out = some[done]
            labels[alive[out]], pull[alive[out]] = regions[done], forces[done]
            if len(out) == len(alive):
                break
            if len(out) > 0:
                stay = torch.ones(len(alive), dtype=torch.bool, device=s.device).index_fill_(0, out, False)
                s, cap, half, tolerance, alive = (x[stay] for x in (s, cap, half, tolerance, alive))
                edges, u, y, upper = (x[:, stay] for x in (edges, u, y, upper))
        u, y = _descend(s, u.contiguous(), y.contiguous(), upper.contiguous(), w)
    return labels, torch.where(bad, torch.nan, pull)


def _descend(s: Tensor, u: Tensor, y: Tensor, upper: Tensor, w: int) -> tuple[Tensor, Tensor]:
    """Some iterations on the dual (2.5.4) from u with the extrapolated point y; they overwrite both.

    A projected gradient step from y gives the new u, and y leaps ahead of it by the whole of u's last move. A grid
    that thereby walked uphill, (y - u_new) . (u_new - u) > 0, starts again without momentum. This is the greedy FISTA
    of Liang, Luo and Schoenlieb (2022) without its safeguard on the step: the certificate is what vouches for a result.
    """
    # Written out on views made once: on small grids the overhead of calls exceeds the arithmetic.
    lower, move, new, q = -upper, torch.zeros_like(u), torch.empty_like(u), torch.empty_like(s)
    s_row, q_row = s.view(-1), q.view(-1)
    right, down = y[0].view(-1), y[1].view(-1)
    to_right, to_down = move[0].view(-1)[:-1], move[1].view(-1)[:-w]
    q_left, q_right, q_above, q_below = q_row[:-1], q_row[1:], q_row[:-w], q_row[w:]
    right_inner, down_inner = right[:-1], down[:-w]
    for _ in range(CHECK_EVERY):
        torch.add(s_row, right, out=q_row).add_(down)
        q_right.sub_(right_inner)
        q_below.sub_(down_inner)
        torch.sub(q_right, q_left, out=to_right)
        torch.sub(q_below, q_above, out=to_down)
        torch.add(y, move, alpha=STEP, out=new)
        torch.clamp(new, lower, upper, out=new)
        torch.sub(new, u, out=move)
        climb = torch.linalg.vecdot(y.sub_(new), move).sum(0)
        torch.addcmul(new, move, (climb <= 0).to(s.dtype)[:, None], out=y)
        u, new = new, u
    return u, y


def _working_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # mps has no float64


def _normalised(s: Tensor, gamma: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores in [-1, 1], gamma on the same scale, that scale, and which grids cannot be solved: (B, n) and (B, 1)."""
    bad = ((~s.isfinite() & mask).any(-1, keepdim=True)) | ~(gamma >= 0) | gamma.isinf()
    s = torch.where(mask & ~bad, s, 0)
    high = torch.where(mask, s, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(mask, s, torch.inf).amin(-1, keepdim=True)
    half = torch.where(high > low, high / 2 - low / 2, 1)
    s = torch.where(mask & ~bad, (s - (high / 2 + low / 2)) / half, 0)
    # No edge ever has to carry more than the whole excess of a grid, below 2 n: a larger gamma changes nothing.
    return s, torch.where(bad, 0, gamma / half).clamp(max=2.0 * s.shape[-1]), half, bad


def _edges(mask: Tensor, w: int) -> Tensor:
    """Which edges exist: both ends take part, and the right one is in the same row. mask (B, n) -> (2, B, n)."""
    grid = mask.view(len(mask), -1, w)
    edges = torch.zeros(2, *grid.shape, dtype=torch.bool, device=mask.device)
    edges[0, :, :, :-1] = grid[:, :, 1:] & grid[:, :, :-1]
    edges[1, :, :-1] = grid[:, 1:] & grid[:, :-1]
    return edges.view(2, *mask.shape)


def _primal(s: Tensor, u: Tensor, w: int) -> Tensor:
    """s - D^T u, (2.5.4): an edge adds its dual to its first cell and takes it from its second."""
    right, down = u[0].flatten(), u[1].flatten()
    q = s.flatten() + right + down
    q[1:] -= right[:-1]
    q[w:] -= down[:-w]
    return q.view(s.shape)


def _differences(q: Tensor, w: int) -> Tensor:
    """D q, second cell minus first; undefined at edges that do not exist. (B, n) -> (2, B, n)."""
    row = q.flatten()
    right, down = torch.zeros_like(row), torch.zeros_like(row)
    torch.sub(row[1:], row[:-1], out=right[:-1])
    torch.sub(row[w:], row[:-w], out=down[:-w])
    return torch.stack((right, down)).view(2, *q.shape)


def _polished(s: Tensor, cap: Tensor, u: Tensor, edges: Tensor, q: Tensor, w: int) -> tuple[Tensor, Tensor, Tensor]:
    """Regions and pull read off the duals u, with the duality gap (2.5.5) of the values they give; q = s - D^T u.

    Cells are fused along the edges whose dual is strictly inside its bounds: the projection puts the others exactly
    on the bound, so no tolerance decides what is equal.
    """
    B, n = s.shape
    upper = edges * cap
    free = u.abs() < upper
    label = _components(free, w)

    # Where gamma = 0 the dual is zero and has no sign; there the direction is that of the scores.
    sign = torch.where(free | ~edges, 0, torch.where(upper > 0, u, _differences(q, w)).sign())
    force = _primal(torch.zeros_like(s), sign, w)

    def region_sum(x: Tensor) -> Tensor:
        return torch.zeros_like(x).view(-1).index_add_(0, label, x.view(-1))[label].view(B, n)

    size = region_sum(torch.ones_like(s))
    pull = region_sum(force) / size
    value = region_sum(s) / size + cap * pull
    jump = _differences(value, w)
    # Regions of equal value may differ in the last digits, and then in the direction that counts.
    jump = torch.where(edges & (jump.abs() > n * torch.finfo(s.dtype).eps), jump, 0)
    gap = (value - q).square().sum(-1) / 2 + ((upper - u * jump.sign()) * jump.abs()).sum((0, 2))
    return label.view(B, n) - n * torch.arange(B, device=s.device)[:, None], pull, gap


def _components(joined: Tensor, w: int) -> Tensor:
    """For each cell of a batch laid out in one row, the first cell it is connected to. joined (2, B, n) -> (B n)."""
    label = torch.arange(joined[0].numel(), device=joined.device)
    while True:
        before = label
        for edge, shift in ((joined[0].flatten(), 1), (joined[1].flatten(), w)):
            first, second = label[:-shift], label[shift:]
            least = torch.minimum(first, second)
            linked = edge[:-shift]
            label = label.clone()
            label[:-shift] = torch.where(linked, least, first)
            label[shift:] = torch.minimum(label[shift:], torch.where(linked, least, second))
        label = label[label]
        label = label[label]
        if torch.equal(label, before):
            return label


def warn(error: Tensor) -> None:
    """Warn that some grids were not certified; `error` bounds the distance of each from its solution."""
    warnings.warn(
        f"tvmax: {len(error)} grid(s) not certified after {MOST_ITERATIONS} iterations: the smoothed scores are "
        f"within {float(error.max()):.1e} of the solution, and some cells may be in the wrong region.",
        RuntimeWarning,
        stacklevel=2,
    )
