"""`sinkhorn`: a map onto the transport polytope, used by all of regard. B rows (samples), K columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from regard import _check
from regard._once import once
from regard._repr import shown
from regard._torch import without_values
from regard.maps.sinkhorn.derivative import solved
from regard.maps.sinkhorn.log_domain import iterated, rows_alone
from regard.maps.sinkhorn.products import quotient, reduced
from regard.maps.sinkhorn.scaling import Scaling

EXACT = (
    "Smaller is closer to a hard assignment, and any is safe: 0.05 is usual, 1e-3 of the range of the scores all but "
    "exact. At 0 itself the problem is a linear programme: regard.wasserstein.exact_wasserstein has its value."
)
REPORTED = 1e-3  # without `tol`, a residual up to this counts as converged


@dataclass(frozen=True, repr=False)
class Transport:
    """What `sinkhorn` returns: the plan exp((s + f + g) / eps) (6.2), and how well it fits its marginals (6.7).

    `plan`: (..., B, K), with rows exact to rounding.
    `potentials`: f (..., B) and g (..., K), -inf without mass.
    `residual`: (...), the largest relative error of a column's sum.
    `iterations`: the number that was run.
    `converged`: (...), whether the residual is at most `tol`, default 1e-3.
    `rows`: (..., B), the marginal of the rows.

    >>> transport = sinkhorn(torch.zeros(2, 4))
    >>> transport.plan.sum(0), bool(transport.converged), transport.weights.sum(-1)
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
    whenever it stops.

    `s`: scores (..., B, K).
    `eps`: weight of the entropy, > 0; default 1.
    `iterations`: their number, default 3; with `tol` the largest number, default 1000. With zero only the rows are
    scaled: softmax of s / eps in each row.
    `tol`: the residual at which to stop; default None.
    `rows`, `columns`: marginals (..., B) and (..., K), non-negative with equal sums; default uniform with sum one.
    `mask`: boolean, True where an entry takes part; default None.
    `gradient`: "unrolled", through the iterations (6.8), or "implicit", which needs `tol`, by a linear system at the
    fixed point (6.9); default "unrolled".
    `group`: processes that share a batch; default None. Each passes its rows and gets their part of the plan; only
    vectors of length K are exchanged. All must call it, and its backward pass, together; the gradient is that of the
    sum of their losses, and marginals are constants.

    Plan and potentials are differentiable once in `s`, `rows` and `columns`.

    Scores of any size and any eps are safe: iterations are products of a matrix and vectors while a bound proves that
    no underflow matters (6.6), and run in float64 in the log domain where it cannot. An entry with score -inf counts
    as masked, and its plan is zero. A row or column that is masked entirely has no mass: its share goes to the others
    in proportion. When the mask admits no plan with these marginals, the residual stays large. NaN and +inf raise
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
    if 0 in s.shape[:-2]:  # no problem to solve
        f, g, residual = s.sum(-1), s.sum(-2), s.detach().sum((-2, -1))
        return Transport(s.to(dtype), (f, g), residual, most, residual == 0, s.detach().sum(-1))
    row_tops, column_tops = s.detach().amax(-1), s.detach().amax(-2)
    column_tops = reduced(column_tops, group, dist.ReduceOp.MAX)
    top = column_tops.amax(-1)
    top = torch.where(top > -math.inf, top, 0)
    a, b = _marginals(rows, columns, row_tops > -math.inf, column_tops > -math.inf, s, group)
    if most == 0:
        plan, f, g, residual = rows_alone(s, a, b, eps, group)
    elif _check.readable(s):
        run = Scaling(s.detach(), a.detach(), b.detach(), eps, group, top, keep=False)
        s, a, b = (once(x, "sinkhorn") for x in (s, a, b))
        plan, f, g, residual = solved(s, a, b, run, most, tol, gradient)
        most = run.iterations
    else:
        nothing_to_solve = without_values(s) and not torch.compiler.is_compiling()
        plan, f, g, residual = iterated(s, a, b, eps, 1 if nothing_to_solve else most, group)
    converged = residual <= (REPORTED if tol is None else tol)
    return Transport(plan.to(dtype), (f, g), residual, most, converged, a)


# For `attend`: a row of this map depends on all the others, so that queries must not be split into blocks.
sinkhorn.couples_rows = True  # type: ignore[attr-defined]


def _marginals(
    rows: Tensor | None,
    columns: Tensor | None,
    row_lives: Tensor,
    column_lives: Tensor,
    s: Tensor,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """Both marginals in full shape, zero where masked, and with equal sums.

    `rows`, `columns`, `s`, `group`: as in `sinkhorn`.
    `row_lives`, `column_lives`: True where a row or column is not masked entirely.
    """
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


def _masses(argument: str, masses: Tensor | None, lives: Tensor, s: Tensor) -> Tensor:
    if masses is None:
        return torch.ones_like(lives, dtype=s.dtype)
    _check.floating(argument, masses, min_dims=1)
    _check.broadcasts(argument, masses, lives.shape, f"a marginal of s {tuple(s.shape)}:")
    _check.finite(argument, masses)
    if _check.values_checked(masses) and bool((masses < 0).any()):
        _check.complain(argument, "a negative entry", "masses >= 0", "Normalise counts, or take a softmax.")
    return masses.to(s.dtype).expand(lives.shape)
