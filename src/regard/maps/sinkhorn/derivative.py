"""The derivatives of Sinkhorn's plan and potentials: back through the iterations, or implicitly at the fixed point."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from regard import _check
from regard.maps.sinkhorn.log_domain import start, widest
from regard.maps.sinkhorn.products import quotient, reduced, times_columns, times_rows
from regard.maps.sinkhorn.scaling import Scaling, gibbs_kernel, underflow_bound

DAMPING = 1e-12  # relative, of the implicit system: far below the residual of a converged run
RELATIVE_RESIDUAL = 1e-12  # relative residual at which conjugate gradients stop
MOST_GRADIENT_STEPS = 2000

Gradients = tuple[Tensor, Tensor, Tensor]  # with respect to s, a and b


def solved(
    s: Tensor, a: Tensor, b: Tensor, run: Scaling, most: int, tol: float | None, gradient: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan, potentials and residual of `run` as functions of the scores `s` and the marginals `a` and `b`.

    `run`: the problem, without gradients; it counts its iterations.
    `most`: the largest number of iterations.
    `tol`: the residual at which it stops, or None.
    `gradient`: "unrolled" or "implicit".
    """
    solution: tuple[Tensor, Tensor, Tensor, Tensor] = _Sinkhorn.apply(s, a, b, run, most, tol, gradient)
    return solution


class _Sinkhorn(Function):
    """Solves `run`, and differentiates it. Plan, potentials and residual; only the residual has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, a: Tensor, b: Tensor, run: Scaling, most: int, tol: float | None, gradient: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        run.keep = gradient == "unrolled" and any(ctx.needs_input_grad)
        plan, f, g, residual = run.solve(most, tol)
        ctx.run, ctx.implicit = run, gradient == "implicit"
        ctx.save_for_backward(plan)
        ctx.mark_non_differentiable(residual)
        return plan, f.to(s.dtype), g.to(s.dtype), residual

    @staticmethod
    def backward(ctx: Any, dplan: Tensor, df: Tensor, dg: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        run: Scaling = ctx.run
        # A potential of -inf belongs to a row or column without mass, and is constant.
        df, dg = torch.where(run.a > 0, df, 0), torch.where(run.b > 0, dg, 0)
        (plan,) = ctx.saved_tensors
        if ctx.implicit:
            ds, da, db = implicit(plan, run.eps, run.group, dplan, df, dg)
        else:
            ds, da, db = unrolled(run, plan, dplan, df, dg)
        return (*(x.to(run.s.dtype) for x in (ds, da, db)), None, None, None, None)


def unrolled(run: Scaling, plan: Tensor, dplan: Tensor, df: Tensor, dg: Tensor) -> Gradients:
    """Reverse mode through every iteration of `run` (docs/math.md, 6.8).

    In terms of the final plan P, half an iteration adds P * (x y^T) to the gradient. The vectors x and y come from
    matrix-vector products, as in the forward pass, and all the outer products are one matrix product at the end.
    """
    if not _check.readable_at_once(plan):
        return _unrolled_log(run, dplan, df, dg)
    a, b, eps, group = run.a, run.b, run.eps, run.group
    fs, gs = torch.stack([start(a).double(), *run.fs]), torch.stack(run.gs)
    u = torch.where(a > 0, ((fs - fs[-1]) / eps).exp(), 0).to(plan.dtype)
    v = torch.where(b > 0, ((gs - gs[-1]) / eps).exp(), 0).to(plan.dtype)
    if not _safe(u, v, run):
        return _unrolled_log(run, dplan, df, dg)
    ds = (plan * dplan).div_(eps)
    df = df + ds.sum(-1)
    dg = reduced(dg + ds.sum(-2), group)
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    left, right = [], []
    for t in reversed(range(run.iterations)):
        x = quotient(df, a) * u[t + 1]
        da += eps * quotient(df, a)
        dg = dg - reduced(times_rows(x, plan) * v[t], group)
        y = quotient(dg, b) * v[t]
        db += eps * quotient(dg, b)
        df, dg = -times_columns(plan, y) * u[t], torch.zeros_like(dg)
        left += [x, u[t]]
        right += [v[t], y]
    return ds.sub_((torch.stack(left, -1) @ torch.stack(right, -2)).mul_(plan)), da, db


def _safe(u: Tensor, v: Tensor, run: Scaling) -> bool:
    """Whether underflow in the plan is below rounding for the kernel of every iteration, by the bound (6.6)."""
    sums = quotient(run.a, u[1:]), quotient(run.b, v)
    bound = torch.maximum(
        underflow_bound(v, sums[0], run.a).amax(),
        torch.maximum(underflow_bound(u[1:], sums[1], run.b).amax(), underflow_bound(u[:-1], sums[1], run.b).amax()),
    )
    bound = reduced(bound, run.group, dist.ReduceOp.MAX)
    processes = 1 if run.group is None else dist.get_world_size(run.group)
    return bool(bound * processes <= torch.finfo(u.dtype).eps)


def _unrolled_log(run: Scaling, dplan: Tensor, df: Tensor, dg: Tensor) -> Gradients:
    """The same where the final plan is too far from the first, or where nothing may be read that says so: one kernel
    per half iteration, in float64."""
    eps = run.eps
    s, a, b = (x.to(widest(run.s)) for x in (run.s, run.a, run.b))
    fs = [start(a), *run.fs]
    ds = gibbs_kernel(s, run.gs[-1], a, eps) * dplan / eps
    df = df + ds.sum(-1)
    dg = reduced(dg + ds.sum(-2), run.group)
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    for t in reversed(range(run.iterations)):
        half = gibbs_kernel(s, run.gs[t], a, eps) * quotient(df, a).unsqueeze(-1)
        da += eps * quotient(df, a)
        ds -= half
        dg = dg - reduced(half.sum(-2), run.group)
        half = ((s + fs[t].unsqueeze(-1) + run.gs[t].unsqueeze(-2)) / eps).exp()
        # Its columns sum to b; any excess is rounding of huge scores.
        half = torch.minimum(half, b.unsqueeze(-2)) * quotient(dg, b).unsqueeze(-2)
        db += eps * quotient(dg, b)
        ds -= half
        df, dg = -half.sum(-1), torch.zeros_like(dg)
    return ds, da, db


def implicit(
    plan: Tensor, eps: float, group: dist.ProcessGroup | None, dplan: Tensor, df: Tensor, dg: Tensor
) -> Gradients:
    """At the fixed point, by one symmetric linear system (docs/math.md, 6.9).

    The rows are eliminated, and the remaining system, one unknown per column, is solved by conjugate gradients
    with the marginal as preconditioner, in float64: products of the plan with vectors, as many as about the square
    root of the number of iterations that Sinkhorn itself needs. A plan that decomposes into blocks makes the system
    singular; the damping then picks one of its solutions, which all give the same gradient.
    """
    plan, dplan, df, dg = plan.double(), dplan.double(), df.double(), dg.double()
    a, b = plan.sum(-1), reduced(plan.sum(-2), group)
    w = plan * dplan
    on_rows = w.sum(-1) + eps * df
    on_columns = reduced(w.sum(-2) + eps * dg, group)

    def to_columns(x: Tensor) -> Tensor:
        return reduced(times_rows(quotient(x, a), plan), group)

    def damped_schur(y: Tensor) -> Tensor:
        return (1 + DAMPING) * b * y - to_columns(times_columns(plan, y))

    rest = on_columns - to_columns(on_rows)
    # Moving a constant from f to g does not change the plan: that direction is projected out.
    rest = rest - quotient(b * rest.sum(-1, keepdim=True), b.sum(-1, keepdim=True))
    y = torch.zeros_like(rest)
    scaled = quotient(rest, b)
    direction, size = scaled, (rest * scaled).sum(-1, keepdim=True)
    enough = RELATIVE_RESIDUAL**2 * size
    for _ in range(MOST_GRADIENT_STEPS):
        if bool((size <= enough).all()):
            break
        image = damped_schur(direction)
        step = torch.where(size > enough, size / (direction * image).sum(-1, keepdim=True), 0)
        y = y + step * direction
        rest = rest - step * image
        scaled = quotient(rest, b)
        size, before = (rest * scaled).sum(-1, keepdim=True), size
        direction = scaled + torch.where(before > 0, size / before, 0) * direction
    x = quotient(on_rows - times_columns(plan, y), a)
    return (w - plan * (x.unsqueeze(-1) + y.unsqueeze(-2))) / eps, x, y
