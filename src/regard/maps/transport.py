"""Maps onto the transport polytope: the one Sinkhorn of the project. B rows (samples), K columns (prototypes)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from regard import _check
from regard._once import once
from regard._repr import shown
from regard._torch import without_values
from regard.maps import _adjoint
from regard.maps._scaling import Scaling, log_iteration, quotient, reduced, row_potential, share_error, start
from regard.maps._value import MapValue

EXACT = (
    "Smaller is closer to a hard assignment, and any is safe: 0.05 is usual, 1e-3 of the range of the scores all but "
    "exact. At 0 itself the problem is a linear programme: regard.wasserstein.exact_wasserstein has its value."
)
REPORTED = 1e-3  # without `tol`, shares that are right to a thousandth count as converged


@dataclass(frozen=True, repr=False)
class Transport:
    """What `sinkhorn` returns: the plan exp((s + f + g) / eps) (6.2), and how well it fits its marginals (6.7).

    plan (..., B, K), with rows exact to rounding; potentials f (..., B) and g (..., K), -inf without mass; residual
    (...), the largest relative error of a column's share; iterations, how many were run; converged (...), whether the
    residual is at most `tol` (1e-3 if none was given); rows (..., B), the marginal of the rows.

    >>> found = sinkhorn(torch.zeros(2, 4))
    >>> found.plan.sum(0), bool(found.converged), found.weights.sum(-1)
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]), True, tensor([1., 1.]))
    """

    plan: Tensor
    potentials: tuple[Tensor, Tensor]
    residual: Tensor
    iterations: int
    converged: Tensor
    rows: Tensor

    def __repr__(self) -> str:
        return shown(self, vars(self))

    @property
    def weights(self) -> Tensor:
        """The plan with every row divided by its mass (..., B, K): distributions over the columns, or zeros."""
        return quotient(self.plan, self.rows.unsqueeze(-1).to(self.plan.dtype))


def sinkhorn(
    s: Tensor,
    eps: float = 1.0,
    iterations: int | None = None,
    tol: float | None = None,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    gradient: Literal["unrolled", "implicit"] = "unrolled",
    group: dist.ProcessGroup | None = None,
) -> Transport:
    """Plan that maximises <s, p> plus eps times its entropy, given the sums of its rows and columns.

    The problem is (6.1) in docs/math.md. An iteration scales the columns and then the rows, so that rows are exact
    whenever it stops. Runs `iterations` of them (3 unless given), or at most so many (1000 unless given) until the
    residual is at most `tol`. With zero iterations only the rows are scaled: softmax of s / eps in each row.

    `s` is (..., B, K); `rows` (..., B) and `columns` (..., K) are non-negative with equal sums, uniform and summing to
    one if not given; `mask` is boolean, True where an entry takes part. In a process `group` each process passes its
    own rows of the batch, gets their part of the plan, and only vectors of length K are exchanged; all must call it,
    and its backward pass, together, and the gradient is that of the sum of their losses. Marginals are constants there.

    Plan and potentials are differentiable once in `s`, `rows` and `columns`: through the iterations (6.8), or with
    gradient="implicit", which needs `tol`, by a linear system at the fixed point (6.9).

    Scores of any size and any eps are safe: iterations are products of a matrix and vectors while a bound proves that
    no underflow matters (6.6), and run in float64 in the log domain where it cannot. An entry with score -inf counts
    as masked, and its plan is zero. A row or column that is masked whole takes no mass: its share goes to the others
    in proportion. When the mask admits no plan with these marginals, the residual says so. NaN and +inf raise
    ValueError. The plan has the dtype of `s`, or float32 for float16, which cannot hold 1 / (B K).

    >>> result = sinkhorn(torch.tensor([[1.0, 0.9], [1.0, 0.8]]), eps=0.05, tol=1e-5)
    >>> result.plan
    tensor([[0.1345, 0.3655],
            [0.3655, 0.1345]])
    >>> bool(result.converged), result.iterations
    (True, 8)
    """
    _check.floating("s", s, min_dims=2)
    for dim in (-2, -1):
        _check.axis("s", s, dim)
    eps = _check.number("eps", eps, above=0, remedy=EXACT)
    if tol is not None:
        tol = _check.number("tol", tol, above=0)
    most = _check.count("iterations", (3 if tol is None else 1000) if iterations is None else iterations, at_least=0)
    if gradient not in ("unrolled", "implicit"):
        _check.complain("gradient", repr(gradient), "'unrolled' or 'implicit'", "Choose one of the two.")
    if gradient == "implicit" and tol is None:
        _check.complain("gradient", "'implicit' without tol", "a tol", "The fixed point must be reached; try tol=1e-6.")
    if mask is not None:
        _check.boolean_mask(mask, s.shape)
        s = s.masked_fill(~mask, -math.inf)
    dtype = torch.float32 if s.dtype == torch.float16 else s.dtype
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    _check.scores(s)
    row_tops, column_tops = s.detach().amax(-1), s.detach().amax(-2)
    column_tops = reduced(column_tops, group, dist.ReduceOp.MAX)
    top = column_tops.amax(-1)
    top = torch.where(top > -math.inf, top, 0)
    a, b = _marginals(rows, columns, row_tops > -math.inf, column_tops > -math.inf, s, group)
    if most == 0:
        plan, f, g, residual = _rows_alone(s, a, b, eps, group)
    elif _check.readable(s):
        run = Scaling(s.detach(), a.detach(), b.detach(), eps, group, top, keep=False)
        s, a, b = (once(x, "sinkhorn") for x in (s, a, b))
        plan, f, g, residual = _Sinkhorn.apply(s, a, b, run, most, tol, gradient)
        most = run.iterations
    else:
        nothing_to_solve = without_values(s) and not torch.compiler.is_compiling()
        plan, f, g, residual = _traceable(s, a, b, eps, 1 if nothing_to_solve else most, group)
    reached = residual <= (REPORTED if tol is None else tol)
    return Transport(plan.to(dtype), (f, g), residual, most, reached, a)


# For `attend`: a row of this map depends on all the others, so that queries must not be split into blocks.
sinkhorn.couples_rows = True  # type: ignore[attr-defined]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sinkhorn(MapValue):
    """Doubly stochastic attention (6.1): a map whose rows sum to one and whose columns all get the same total.

    `sinkhorn` with its settings held, as a map that `attend` takes: rows are queries, and `dim` is the axis of the
    keys, the last or the one before it. Scores are divided by `eps`. Gradients and edge cases as in `sinkhorn`.

    >>> Sinkhorn(tol=1e-6)(torch.tensor([[3.0, 1.0], [2.0, 2.0]]))
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """

    eps: float = 1.0
    iterations: int | None = None
    tol: float | None = None
    gradient: Literal["unrolled", "implicit"] = "unrolled"
    function = sinkhorn

    @property
    def couples_rows(self) -> bool:
        """A row depends on all the others."""
        return True

    def __call__(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights with the shape and dtype of s."""
        _check.floating("s", s, min_dims=2)
        dim = _check.axis("s", s, dim)
        if dim == -2:
            return self(s.mT, -1, None if mask is None else mask.expand_as(s).mT).mT
        if dim != -1:
            _check.complain("dim", dim, "-1 or -2", "Sinkhorn couples the last two axes; move yours there.")
        result = sinkhorn(s, self.eps, self.iterations, self.tol, mask=mask, gradient=self.gradient)
        return result.weights.to(s.dtype)


def _marginals(
    rows: Tensor | None,
    columns: Tensor | None,
    row_lives: Tensor,
    column_lives: Tensor,
    s: Tensor,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """Both marginals in full shape, without mass where nothing lives, and with equal sums."""
    a, b = _masses("rows", rows, row_lives, s), _masses("columns", columns, column_lives, s)
    if group is not None:
        a, b = a.detach(), b.detach()
    row_total, column_total = reduced(a.sum(-1, keepdim=True), group), b.sum(-1, keepdim=True)
    if rows is not None and columns is not None and _check.values_checked(a):
        apart = (row_total - column_total).abs() > 1e-3 * column_total
        if bool(apart.any()):
            worst = f"{float(row_total[apart][0]):.6g} against {float(column_total[apart][0]):.6g}"
            _check.complain("rows", f"a sum of {worst}", "the sum of columns", "Normalise both.")
    total = row_total if rows is not None else column_total if columns is not None else torch.ones_like(row_total)
    a, b = a * row_lives, b * column_lives
    alive = reduced(a.sum(-1, keepdim=True), group)
    return quotient(a * total, alive), quotient(b * total, b.sum(-1, keepdim=True))


def _masses(argument: str, given: Tensor | None, lives: Tensor, s: Tensor) -> Tensor:
    if given is None:
        return torch.ones_like(lives, dtype=s.dtype)
    _check.floating(argument, given, min_dims=1)
    _check.broadcasts(argument, given, lives.shape, f"a marginal of s {tuple(s.shape)}:")
    _check.finite(argument, given)
    if _check.values_checked(given) and bool((given < 0).any()):
        _check.complain(argument, "a negative entry", "masses >= 0", "Normalise counts, or take a softmax.")
    return given.to(s.dtype).expand(lives.shape)


def _traceable(
    s: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All iterations in the log domain, for `torch.compile` and `torch.func`, where values cannot be looked at."""
    f = start(a)
    for _ in range(iterations):
        f, g = log_iteration(s, f, a, b, eps, group)
    plan = ((s + f.unsqueeze(-1) + g.unsqueeze(-2)) / eps).exp()
    return plan, f, g, share_error(reduced(plan.detach().sum(-2), group), b.detach())


def _rows_alone(
    s: Tensor, a: Tensor, b: Tensor, eps: float, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """No iteration: columns keep what the rows give them."""
    g = start(b).double()
    f = row_potential(s.double(), g, a.double(), eps)
    plan = ((s.double() + f.unsqueeze(-1) + g.unsqueeze(-2)) / eps).exp().to(s.dtype)
    return plan, f.to(s.dtype), g.to(s.dtype), share_error(reduced(plan.detach().sum(-2), group), b.detach())


class _Sinkhorn(Function):
    """Runs `run` and goes back through it. Plan, potentials and residual; only the residual has no gradient."""

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
        # A potential of -inf belongs to a row or column without mass, and does not move.
        df, dg = torch.where(run.a > 0, df, 0), torch.where(run.b > 0, dg, 0)
        (plan,) = ctx.saved_tensors
        if ctx.implicit:
            ds, da, db = _adjoint.implicit(plan, run.eps, run.group, dplan, df, dg)
        else:
            ds, da, db = _adjoint.unrolled(run, plan, dplan, df, dg)
        return (*(x.to(run.s.dtype) for x in (ds, da, db)), None, None, None, None)
