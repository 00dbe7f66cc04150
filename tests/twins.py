"""The table of twins: operations that exist in several implementations, because one cannot serve everywhere.

"plain" is torch on a CPU, and runs with the kernels switched off; "unread" is torch on any other device, where no loop
looks whether it has converged; "triton" is the kernels for GPUs, in an interpreter, "native" those for CPUs, "exported"
a graph without a branch on values that torch.export and ONNX take, "operator" what torch.compile sees, "transformed"
what runs inside torch.func. A new implementation is a line here, and `test_twins.py` compares it with the plain one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from waits import as_on_a_device

import regard
from regard import native
from regard.continuous import quadrature
from regard.maps.entmax.derivative import pullback
from regard.maps.entmax.export import entmax_exported
from regard.maps.entmax.kernel import pullback_by_kernel
from regard.maps.sinkhorn.products import scaled_rows

BOTH = torch.float32, torch.float64


@dataclass(frozen=True)
class Twins:
    """The implementations of one operation, and the inputs that they take.

    forms:  by name, functions of tensors, `mask` and the setting; None says that a form does not apply
    inputs:  the tensors for a shape and a kind of values, in float64
    shapes:  every awkward size
    settings:  other arguments, by keyword
    kernels:  the native kernels that run in the form "native"
    values:  kinds of values
    masks:  whether there is a mask
    dtypes:  of the tensors; the plain form judges in float64
    close:  how far the results may be apart in float32 and in float64; half precision is rounded besides
    gradient:  whether the gradients in all tensors are compared too
    """

    forms: dict[str, Callable[..., Any]]
    inputs: Callable[[tuple[int, ...], str], tuple[torch.Tensor, ...]]
    shapes: list[tuple[int, ...]]
    settings: list[dict[str, Any]]
    kernels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("unit",)
    masks: tuple[bool, ...] = (False,)
    dtypes: tuple[torch.dtype, ...] = BOTH
    close: tuple[float, float] = (2e-6, 1e-11)
    gradient: bool = False


def random(*shape: int) -> torch.Tensor:
    """Standard normal numbers in float64 that depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def scores(shape: tuple[int, ...], kind: str) -> tuple[torch.Tensor, ...]:
    """Scores of a kind. Float32 holds them exactly: a twin in float32 has the same problem to solve."""
    x = random(*shape).float().double()
    kinds = {
        "unit": x,
        "wide": 32 * x,
        "narrow": 2.0**-10 * x,
        "far": (x + 1024).float().double(),
        "equal": torch.ones_like(x),
        "denormal": 2.0**-133 * x.round(),
        "ties": (2 * x).round(),
        "geometric": (0.97 ** torch.arange(shape[-1]) * torch.ones_like(x)).float().double(),
    }
    return (kinds[kind],)


def _hidden(s: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return s if mask is None else s.masked_fill(~mask, -math.inf)


def _alpha(alpha: float | str, s: torch.Tensor) -> Any:
    """A number, or one for each row."""
    if not isinstance(alpha, str):
        return alpha
    ends = (1.05, 1.95) if alpha == "per row" else (0.5, 3.5)
    return torch.linspace(*ends, s.shape[:-1].numel(), dtype=s.dtype).view(*s.shape[:-1], 1)


def _entmax(s, mask, alpha):
    return regard.entmax(s, _alpha(alpha, s), mask=mask)


def unread(form: Callable[..., Any]) -> Callable[..., Any]:
    """As on a device without kernels: values are not read."""

    def run(*tensors, **setting):
        with regard.checks(False), native.switched_off(), as_on_a_device():
            return form(*tensors, **setting)

    return run


def by_triton(form: Callable[..., Any]) -> Callable[..., Any]:
    """By the kernels for GPUs, in float32 alone, on sizes that are small enough for an interpreter."""

    def run(*tensors, **setting):
        from interpreter import interpreted

        if tensors[0].numel() > 150:
            return None
        with regard.checks(False), native.switched_off(), as_on_a_device(), interpreted() as counts:
            result = form(*tensors, **setting)
        return result if counts.launches else None

    return run


def _entmax_operator(s, mask, alpha):
    alpha = _alpha(alpha, s)
    alphas, number = (alpha, 0.0) if isinstance(alpha, torch.Tensor) else (None, alpha)
    return torch.ops.regard.entmax(_hidden(s, mask).contiguous(), alphas, number, -1)


def _entmax_exported(s, mask, alpha):
    return entmax_exported(_hidden(s, mask), _alpha(alpha, s), -1)


def _weights_and_gradient(shape: tuple[int, ...], kind: str) -> tuple[torch.Tensor, ...]:
    p = torch.relu(random(*shape)).float().double()
    return p / p.sum(-1, keepdim=True).clamp(min=1), random(*shape, 1)[..., 0]


def _tvmax(s, mask, gamma):
    if gamma == "per grid":
        gamma = torch.linspace(0.0, 1.0, len(s), dtype=s.dtype).view(-1, 1, 1)
    return regard.tvmax(s, gamma, mask)


def _plan(s, mask, **how):
    plan = regard.sinkhorn(s, mask=mask, **how).plan
    return plan * plan.shape[-1] * plan.shape[-2]


def _plan_transformed(s, mask, **how):
    return torch.func.vmap(lambda x: _plan(x, mask, **how))(s.unsqueeze(0)).squeeze(0)


def _matrix_and_vectors(shape: tuple[int, ...], kind: str) -> tuple[torch.Tensor, ...]:
    return tuple(random(*size).abs().float().double() for size in (shape, (*shape[:-2], shape[-1]), shape[:-1]))


def _scaled(matrix, v, a, mask):
    sums, u, columns = scaled_rows(matrix, v, a)
    columns = (u.unsqueeze(-2) @ matrix).squeeze(-2) if columns is None else columns
    # Relative to their size, which is that of the numbers of rows and columns.
    return sums / matrix.shape[-1], u, columns / columns.abs().amax()


def _ellipses(shape: tuple[int, ...], kind: str) -> tuple[torch.Tensor, ...]:
    width = {"unit": 1.0, "wide": 6.0}[kind]
    y1, y2 = (4 * random(*shape, n)[..., :1] for n in (1, 2))
    short, more = (random(shape[0], 1, n)[..., :1].abs() for n in (1, 2))
    short = 1.5 + width * short
    return tuple(x.float().double() for x in (y1, y2, short + 4 * more, short))


def _chords_native(*flat, mask, q):
    sums = quadrature._by_kernel(list(flat), q, *quadrature.RULES[torch.float32])
    return None if sums is None else sums / _chord_scale(*flat, q=q)


def _chords_plain(*flat, mask, q):
    return quadrature._block(*flat, 1, q, *quadrature.RULES[torch.float32]) / _chord_scale(*flat, q=q)


def _chord_scale(*flat, q):
    """The six moments have sizes of their own; far from a Gaussian all of them vanish."""
    sums = quadrature._block(*(x.double() for x in flat), 1, q, *quadrature.RULES[torch.float32])
    return sums.abs().amax((0, 1)).clamp(min=1e-2)


def _queries_keys_values(shape: tuple[int, ...], kind: str) -> tuple[torch.Tensor, ...]:
    *lead, queries, keys, width = shape
    return tuple(random(*lead, n, width + i)[..., :width].float().double() for i, n in enumerate((queries, keys, keys)))


def _attend(q, k, v, mask, map, causal=False):
    return regard.attend(q, k, v, map=map, mask=mask, causal=causal)


def _summaries(q, k, v, mask, causal):
    regions = v[..., : min(2, v.shape[-1])].mT.sigmoid()
    with torch.no_grad():
        one = regard.summarize(q, k, causal=causal, top=min(3, k.shape[-2]), regions=regions)
    # Of equal weights any may be the larger: weights at the places, not places. Mass by key grows with the queries.
    placed = one.top_weights * (one.top_places >= 0)
    return one.entropy, one.support.double(), one.received / q.shape[-2], one.top_weights, placed, one.regions


def _largest(x, mask):
    largest = native.largest(x)
    return None if largest is None else torch.tensor(largest, dtype=torch.float64)


SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 511, 512, 513, 4097]
GRIDS = [(1, 1), (1, 2), (2, 1), (1, 7), (7, 1), (2, 4), (3, 3), (3, 5), (4, 4), (17, 1), (1, 17), (5, 13), (14, 14)]
MATRICES = [(1, 1), (7, 1), (1, 8), (5, 3), (9, 16), (40, 70), (4, 6, 6), (2, 3, 50, 20), (1000, 33)]

TWINS = {
    "entmax": Twins(
        forms={
            "plain": _entmax,
            "unread": unread(_entmax),
            "native": _entmax,
            "operator": _entmax_operator,
            "exported": _entmax_exported,
        },
        inputs=scores,
        shapes=[(6, n) for n in SIZES] + [(2, 3, 40)],
        settings=[{"alpha": alpha} for alpha in (2.0, 1.5, 1.3, 1.05, 1.9, "per row")],
        kernels=("regard_entmax_f32", "regard_entmax_f64"),
        values=("unit", "wide", "narrow", "far", "equal", "denormal", "ties", "geometric"),
        masks=(False, True),
        gradient=True,
    ),
    "entmax, alpha below one": Twins(
        forms={
            "plain": _entmax,
            "unread": unread(_entmax),
            "operator": _entmax_operator,
            "exported": _entmax_exported,
        },
        inputs=scores,
        shapes=[(6, n) for n in (1, 2, 17, 600)],
        settings=[{"alpha": alpha} for alpha in (0.05, 0.5, 0.999, 1.0001)],
        values=("unit", "wide", "equal", "geometric"),
        masks=(False, True),
        gradient=True,
    ),
    "entmax, alpha above two": Twins(
        forms={"plain": _entmax, "unread": unread(_entmax)},
        inputs=scores,
        shapes=[(6, n) for n in (1, 2, 17, 600)],
        settings=[{"alpha": alpha} for alpha in (2.1, 3.0, 10.0, "from 0.5 to 3.5")],
        values=("unit", "wide", "far", "equal", "ties", "geometric"),
        masks=(False, True),
    ),
    "gradient of entmax": Twins(
        forms={
            "plain": lambda p, g, mask, alpha: pullback(p, alpha, -1, g)[0],
            "native": lambda p, g, mask, alpha: pullback_by_kernel(p.contiguous(), g, alpha, -1),
        },
        inputs=_weights_and_gradient,
        shapes=[(6, n) for n in SIZES],
        settings=[{"alpha": alpha} for alpha in (2.0, 1.5, 1.3, 1.05, 1.9)],
        kernels=("regard_entmax_backward_f32", "regard_entmax_backward_f64"),
        close=(1e-5, 1e-10),
    ),
    "tvmax": Twins(
        forms={"plain": _tvmax, "native": _tvmax},
        inputs=scores,
        shapes=[(6, *grid) for grid in GRIDS],
        settings=[{"gamma": gamma} for gamma in (0.0, 0.05, 0.4, 100.0, "per grid")],
        kernels=("regard_regions_f32", "regard_regions_f64", "regard_region_means_f32", "regard_region_means_f64"),
        values=("unit", "wide", "narrow", "far", "equal", "denormal", "ties"),
        masks=(False, True),
        close=(4e-6, 2e-6),
        gradient=True,
    ),
    "sinkhorn": Twins(
        forms={
            "plain": _plan,
            "unread": unread(_plan),
            "native": _plan,
            "transformed": _plan_transformed,
            "triton": by_triton(_plan),
        },
        inputs=lambda shape, kind: (random(*shape).sigmoid().float().double(),),
        shapes=MATRICES,
        settings=[{}, {"iterations": 25}, {"eps": 0.05, "iterations": 12}],
        kernels=("regard_scale_f32", "regard_scale_f64"),
        masks=(False, True),
        close=(2e-3, 1e-9),
        gradient=True,
    ),
    "rows and columns of a matrix": Twins(
        forms={"plain": _scaled, "native": _scaled},
        inputs=_matrix_and_vectors,
        shapes=MATRICES + [(rows, columns) for rows in (2, 17, 129) for columns in (2, 9, 15, 129)],
        settings=[{}],
        kernels=("regard_scale_f32", "regard_scale_f64"),
    ),
    "chords": Twins(
        forms={"plain": _chords_plain, "native": _chords_native, "triton": by_triton(_chords_native)},
        inputs=_ellipses,
        shapes=[(1, 1), (3, 17), (40, 100)],
        settings=[{"q": 1}, {"q": 2}],
        kernels=("regard_chords_f32",),
        values=("unit", "wide"),
        dtypes=(torch.float32,),
        close=(5e-5, 0.0),
    ),
    "attention with a sparse map": Twins(
        forms={"plain": _attend, "unread": unread(_attend), "native": _attend},
        inputs=_queries_keys_values,
        shapes=[(2, 600, 700, 8), (3, 1, 1, 1), (2, 3, 17, 33, 16), (2, 49, 49, 32), (512, 513, 3)],
        settings=[
            {"map": map_, "causal": causal}
            for map_ in ("sparsemax", "entmax", regard.Entmax(1.3), regard.Entmax(1.02))
            for causal in (False, True)
        ],
        kernels=tuple(
            f"regard_attend_{way}_{name}" for way in ("forward", "backward") for name in ("f32", "bf16", "f16", "f64")
        ),
        masks=(False, True),
        dtypes=(*BOTH, torch.bfloat16, torch.float16),
        close=(1e-5, 1e-12),
        gradient=True,
    ),
    "summaries of softmax": Twins(
        forms={"plain": _summaries, "native": _summaries},
        inputs=_queries_keys_values,
        shapes=[(2, 300, 700, 8), (3, 1, 1, 1), (2, 3, 17, 33, 16), (40, 7, 5), (2, 49, 49, 32), (129, 513, 3)],
        settings=[{"causal": False}, {"causal": True}, {"causal": "upper-left"}],
        kernels=("regard_summarize",),
        dtypes=(torch.float32,),
        close=(3e-6, 0.0),
    ),
    "largest entry": Twins(
        forms={"plain": lambda x, mask: x.abs().max().double(), "native": _largest},
        inputs=scores,
        shapes=[(1,), (7,), (9, 129), (2, 3, 40), (2, 3, 4, 1000)],
        settings=[{}],
        kernels=("regard_largest",),
        values=("unit", "wide", "narrow", "denormal"),
        dtypes=(torch.float16, torch.bfloat16, *BOTH),
        close=(0.0, 0.0),
    ),
}
