"""NaN and infinity in any argument of any public function or module that takes floats: an error that says so."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

import regard
from regard import continuous, nn, wasserstein
from regard.continuous import FourierBasis, GaussianBasis, ParaboloidBasis, grid

CELLS = grid(3, 3)
BASIS = GaussianBasis.on_grid(3, 3)


@dataclass(frozen=True)
class Case:
    """A call and its tensors; `scores` are the numbers of those in which -inf means "masked"."""

    call: Callable[..., object]
    tensors: tuple[Tensor, ...]
    scores: tuple[int, ...] = ()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def positive(*shape: int) -> Tensor:
    return normal(*shape).abs() + 0.1


def weights(*shape: int) -> Tensor:
    return normal(*shape).softmax(-1)


def covariances(*shape: int) -> Tensor:
    return 0.05 * torch.eye(2).expand(*shape, 2, 2).contiguous()


def a_map(function: Callable[..., object]) -> Case:
    return Case(function, (normal(3, 9),), (0,))


def attending(affinity: Callable[..., regard.Affinity], *parameters: Tensor, map: object = regard.softmax) -> Case:
    def call(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        return regard.attend(q, k, v, affinity(*parameters), map)

    return Case(call, (normal(2, 5, 4).abs(), normal(2, 6, 4).abs(), normal(2, 6, 3), *parameters))


def scoring(affinity: Callable[..., regard.Affinity], *parameters: Tensor) -> Case:
    def call(q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
        return regard.attention_weights(q, k, affinity(*parameters))

    return Case(call, (normal(2, 5, 4).abs(), normal(2, 6, 4).abs(), *parameters))


def module(network: torch.nn.Module, *tensors: Tensor) -> Case:
    return Case(network, tensors)


torch.manual_seed(0)  # of the modules' parameters
AFFINITIES = {
    "Additive": (regard.Additive, normal(4)),
    "Bilinear": (regard.Bilinear, normal(4, 4)),
    "BuresW2": (lambda: regard.BuresW2(2, 1),),
    "Concatenation": (regard.Concatenation, normal(4), normal(4)),
    "Dot": (regard.Dot,),
    "EmpiricalW2": (regard.EmpiricalW2,),
    "EntropicW2": (lambda: regard.EntropicW2(2),),
    "Euclidean": (lambda tau: regard.Euclidean(tau), torch.ones(1, 1)),
    "GaussianW2": (lambda tau: regard.GaussianW2(tau), torch.ones(1, 1)),
    "SoftCap": (lambda weight: regard.SoftCap(regard.Bilinear(weight), 5.0), normal(4, 4)),
    "HistogramW1": (lambda support: regard.HistogramW1(support), torch.arange(4.0)),
    "Unsquared": (lambda: regard.Unsquared(regard.GaussianW2()),),
}
CASES = {
    **{
        name: a_map(getattr(regard, name))
        for name in ("softmax", "sparsemax", "entmax", "mean", "gate", "normmax", "budget_sparsemax")
    },
    "entmax alpha": Case(lambda s, a: regard.entmax(s, a), (normal(3, 9), 1 + positive(3, 1)), (0,)),
    "normmax alpha": Case(lambda s, a: regard.normmax(s, a), (normal(3, 9), 1 + positive(3, 1)), (0,)),
    "budget_sparsemax budget": Case(
        lambda s, b: regard.budget_sparsemax(s, b), (normal(3, 9), torch.full((3, 1), 2.5)), (0,)
    ),
    "inverse": Case(regard.inverse, (-positive(3, 9),), (0,)),
    "tvmax": Case(lambda s, g: regard.tvmax(s, gamma=g), (normal(2, 3, 4), torch.full((2, 1, 1), 0.1)), (0,)),
    "sinkhorn": Case(
        lambda s, a, b: regard.sinkhorn(s, rows=a, columns=b), (normal(2, 4, 5), weights(2, 4), weights(2, 5)), (0,)
    ),
    **{
        name: a_map(value)
        for name, value in {
            "Softmax": regard.Softmax(),
            "Sparsemax": regard.Sparsemax(),
            "Entmax": regard.Entmax(1.3),
            "Normmax": regard.Normmax(),
            "BudgetSparsemax": regard.BudgetSparsemax(),
            "Mean": regard.Mean(),
            "Gate": regard.Gate(),
            "Sinkhorn": regard.Sinkhorn(),
        }.items()
    },
    "Inverse": Case(regard.Inverse(), (-positive(3, 9),), (0,)),
    "TVmax": Case(regard.TVmax(0.1, (3, 3)), (normal(2, 9),), (0,)),
    **{name: attending(*how) for name, how in AFFINITIES.items()},
    "summarize": Case(
        lambda q, k, regions, bias: regard.summarize(q, k, regions=regions, bias=bias),
        (normal(5, 4), normal(6, 4), normal(2, 6), normal(5, 6)),
        (3,),
    ),
    "LazyWeights": Case(
        lambda q, k, r: regard.LazyWeights(q, k).transposed_times(r), (normal(5, 4), normal(6, 4), normal(1, 5))
    ),
    "LazyWeights rows": Case(lambda q, k: regard.LazyWeights(q, k).rows([0]), (normal(5, 4), normal(6, 4))),
    "LazyWeights times": Case(
        lambda q, k, v: regard.LazyWeights(q, k).times(v), (normal(5, 4), normal(6, 4), normal(6, 2))
    ),
    "sparse_weights": Case(regard.sparse_weights, (normal(5, 4), normal(6, 4))),
    "flow": Case(
        lambda x, p: regard.flow([regard.LazyWeights(x, x), p], [0], [1]).high, (normal(2, 5, 4), weights(2, 5, 5))
    ),
    "rollout": Case(
        lambda x, p: regard.rollout([regard.LazyWeights(x, x), p], [0]), (normal(2, 5, 4), weights(2, 5, 5))
    ),
    **{f"{name} sparsemax": attending(*how, map=regard.sparsemax) for name, how in AFFINITIES.items()},
    **{f"{name} mean": attending(*how, map=regard.mean) for name, how in AFFINITIES.items()},
    **{f"{name} weights": scoring(*how) for name, how in AFFINITIES.items()},
    "attend": Case(
        lambda q, k, v, bias: regard.attend(q, k, v, bias=bias),
        (normal(2, 5, 4), normal(2, 6, 4), normal(2, 6, 3), normal(5, 6)),
        (3,),
    ),
    "attention_weights": Case(
        lambda q, k, bias: regard.attention_weights(q, k, bias=bias), (normal(5, 4), normal(6, 4), normal(5, 6)), (2,)
    ),
    **{
        f"attend sink {map_name}": Case(
            lambda q, k, v, sink, map_name=map_name: regard.attend(q, k, v, map=map_name, sink=sink),
            (normal(2, 5, 4), normal(2, 6, 4), normal(2, 6, 3), normal(2, 1, 1)),
        )
        for map_name in ("softmax", "sparsemax")
    },
    "attention_weights sink": Case(
        lambda q, k, sink: regard.attention_weights(q, k, sink=sink), (normal(5, 4), normal(6, 4), normal(5, 1))
    ),
    **{
        name: Case(
            lambda s, y, loss=loss: loss(s, y),
            (normal(3, 5), weights(3, 5)),
            (0,),
        )
        for name, loss in {
            "entmax_loss": regard.entmax_loss,
            "sparsemax_loss": regard.sparsemax_loss,
            "normmax_loss": regard.normmax_loss,
        }.items()
    },
    "density_loss": Case(
        lambda mean, target: regard.density_loss(continuous.Paraboloid(mean, covariances(3)), target, CELLS),
        (normal(3, 2), weights(3, 9)),
    ),
    "wasserstein.gaussian_w2": Case(
        wasserstein.gaussian_w2, (normal(5, 3), positive(5, 3), normal(5, 3) + 1, positive(5, 3))
    ),
    "wasserstein.bures_w2": Case(
        wasserstein.bures_w2, (normal(4, 2), covariances(4), normal(4, 2) + 1, 2 * covariances(4))
    ),
    "wasserstein.factored_w2": Case(
        wasserstein.factored_w2, (normal(4, 2), normal(4, 2, 2), normal(4, 2) + 1, normal(4, 2, 2) + 1)
    ),
    "wasserstein.wasserstein_1d": Case(
        lambda x, y, a, b: wasserstein.wasserstein_1d(x, y, 2, a, b),
        (normal(2, 5), normal(2, 4), weights(2, 5), weights(2, 4)),
    ),
    "wasserstein.histogram_wasserstein": Case(
        wasserstein.histogram_wasserstein, (weights(2, 5), weights(2, 5).flip(-1), torch.arange(5.0))
    ),
    "wasserstein.sliced_wasserstein": Case(wasserstein.sliced_wasserstein, (normal(2, 5, 3), normal(2, 4, 3))),
    "wasserstein.entropic_wasserstein": Case(
        lambda x, y, a, b: wasserstein.entropic_wasserstein(x, y, x_weights=a, y_weights=b),
        (normal(2, 5, 3), normal(2, 4, 3), weights(2, 5), weights(2, 4)),
    ),
    "wasserstein.exact_wasserstein": Case(wasserstein.exact_wasserstein, (normal(5, 3), normal(5, 3) + 1)),
    "continuous.match_moments": Case(continuous.match_moments, (weights(2, 9), normal(9, 2))),
    "continuous.fit_mixture": Case(continuous.fit_mixture, (weights(2, 9), normal(9, 2))),
    "continuous.select_mixture": Case(
        partial(continuous.select_mixture, max_components=2), (weights(2, 9), normal(9, 2))
    ),
    "continuous.log_likelihood": Case(
        lambda w, at: continuous.log_likelihood(continuous.fit_mixture(weights(2, 9), CELLS), w, at),
        (weights(2, 9), normal(9, 2)),
    ),
    "continuous.from_canonical": Case(continuous.from_canonical, (normal(3, 2), -covariances(3))),
    "continuous.from_cholesky": Case(continuous.from_cholesky, (normal(3, 2), covariances(3))),
    "continuous.Gaussian": Case(continuous.Gaussian, (normal(3, 2), covariances(3))),
    "continuous.Paraboloid": Case(continuous.Paraboloid, (normal(3, 2), covariances(3))),
    "continuous.BetaGaussian": Case(partial(continuous.BetaGaussian, alpha=1.5), (normal(3, 2), covariances(3))),
    "continuous.PearsonTypeII": Case(partial(continuous.PearsonTypeII, power=0.5), (normal(3, 2), covariances(3))),
    "continuous.exp_beta": Case(partial(continuous.exp_beta, beta=0.5), (normal(5),)),
    "continuous.log_beta": Case(partial(continuous.log_beta, beta=0.5), (positive(5),)),
    "continuous.Mixture": Case(
        lambda mixing, mean: continuous.Mixture(mixing, continuous.Gaussian(mean, covariances(3, 2))),
        (weights(3, 2), normal(3, 2, 2)),
    ),
    "continuous.Locations": Case(lambda points: continuous.Locations(points), (normal(9, 2),)),
    "continuous.GaussianBasis": Case(GaussianBasis, (normal(4, 2), covariances(4))),
    "continuous.ParaboloidBasis": Case(ParaboloidBasis, (normal(4, 2), covariances(4))),
    "continuous.GaussianBasis at": Case(lambda at: BASIS(at), (normal(7, 2),)),
    "continuous.ParaboloidBasis at": Case(lambda at: ParaboloidBasis.on_grid(3, 3)(at), (normal(7, 2),)),
    "continuous.FourierBasis at": Case(lambda at: FourierBasis.on_grid(3, 3)(at), (normal(7, 2),)),
    "continuous.ridge": Case(lambda points: continuous.ridge(points, BASIS), (normal(9, 2),)),
    "continuous.diagnose": Case(
        lambda points, values: continuous.diagnose(points, BASIS, values=values), (normal(9, 2), normal(9, 3))
    ),
    "continuous.continuous_attention": Case(
        lambda values, w: continuous.continuous_attention(values, w, CELLS, BASIS), (normal(2, 9, 3), weights(2, 9))
    ),
    "continuous.read_out": Case(
        lambda values, operator: continuous.read_out(
            values, continuous.match_moments(weights(2, 9), CELLS), BASIS, operator
        ),
        (normal(2, 9, 3), continuous.ridge(CELLS, BASIS)),
    ),
    "nn.MultiheadAttention": module(nn.MultiheadAttention(8, 2), *(normal(2, 5, 8) for _ in range(3))),
    "nn.MultiheadAttention sparsemax": module(
        nn.MultiheadAttention(8, 2, map=regard.sparsemax), *(normal(2, 5, 8) for _ in range(3))
    ),
    "nn.TransformerEncoderLayer": module(nn.TransformerEncoderLayer(8, 2), normal(2, 5, 8)),
    "nn.TransformerDecoderLayer": module(nn.TransformerDecoderLayer(8, 2), normal(2, 5, 8), normal(6, 5, 8)),
    "nn.AttentionPool": module(nn.AttentionPool(8), normal(2, 5, 8)),
    "nn.Entmax": Case(nn.Entmax(2), (normal(1, 2, 5, 5),), (0,)),
    "nn.Gate": Case(nn.Gate(2), (normal(1, 2, 5, 5),), (0,)),
    "nn.WassersteinSelfAttention": module(nn.WassersteinSelfAttention(8, 2), normal(2, 5, 8)),
    "nn.ContinuousAttentionPool": module(nn.ContinuousAttentionPool(8, CELLS, BASIS), normal(2, 9, 8)),
    "nn.ContinuousSelfAttention": module(nn.ContinuousSelfAttention(8, 2, CELLS, BASIS), normal(2, 9, 8)),
    "nn.NonLocal1d": module(nn.NonLocal1d(8), normal(2, 8, 5)),
    "nn.NonLocal2d": module(nn.NonLocal2d(8, "dot_product"), normal(2, 8, 3, 4)),
    "nn.NonLocal3d": module(nn.NonLocal3d(8, "concatenation"), normal(2, 8, 3, 4, 2)),
}
NOT_HERE = {
    "Affinity", "AttentionSummary", "Factored", "FlowBounds", "Map", "Plan", "Transport", "checks", "continuous",
    "explain_attend", "native_kernels", "nn", "wasserstein", "continuous.Attended", "continuous.Basis",
    "continuous.Density", "continuous.Diagnosis", "continuous.Ellipse", "continuous.Fit", "continuous.escort",
    "continuous.FitMixture", "continuous.Interval", "continuous.MatchMoments", "continuous.SelectMixture",
    "continuous.Setting", "continuous.grid", "continuous.line", "continuous.thesis", "nn.Learned", "nn.Pooled",
    "nn.insert_nonlocal",
}  # fmt: skip
"""Public names that take no floats: abstract classes, results, values without tensors, sizes."""


def test_every_public_name_is_here():
    rooms = {"": regard, "continuous.": continuous, "nn.": nn, "wasserstein.": wasserstein}
    public = {room + name for room, package in rooms.items() for name in package.__all__}
    assert public - {name.split()[0] for name in CASES} == NOT_HERE


def places(case: Case) -> list[tuple[int, float]]:
    """Which tensor is spoiled, and by what."""
    bad = (math.nan, math.inf, -math.inf)
    return [(i, x) for i in range(len(case.tensors)) for x in bad if not (i in case.scores and x == -math.inf)]


@pytest.mark.parametrize(
    ("name", "number", "bad"), [(name, i, bad) for name, case in CASES.items() for i, bad in places(case)]
)
def test_nan_and_infinity_are_errors(name, number, bad):
    case = CASES[name]
    case.call(*(x.clone() for x in case.tensors))
    spoiled = [x.clone() for x in case.tensors]
    spoiled[number].view(-1)[-1] = bad
    with pytest.raises(ValueError, match=r"(?i)nan|inf|finite|distribution|>=|>|sum"):
        case.call(*spoiled)


@pytest.mark.parametrize("scale", [-1.0, 0.0, -0.3])
@pytest.mark.parametrize("causal", [True, "upper-left", False])
def test_scales_that_are_not_positive(scale, causal):
    """A causal kernel multiplies -inf by the scale."""
    q, k, v = normal(2, 5, 4), normal(2, 6, 4)[:, :5], normal(2, 5, 3)
    affinity = regard.Dot(scale)
    expected = regard.attention_weights(q, k, affinity, causal=causal) @ v
    torch.testing.assert_close(regard.attend(q, k, v, affinity, causal=causal), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_histograms_in_half_precision(dtype):
    x = normal(2, 5, 40)
    exact = regard.HistogramW1().scores(x, x)
    torch.testing.assert_close(
        regard.HistogramW1().scores(x.to(dtype), x.to(dtype)).float(), exact, atol=0.2, rtol=0.02
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = x.to(torch.bfloat16)
        assert regard.attend(low, low, low, regard.HistogramW1()).isfinite().all()


@pytest.mark.parametrize("map", ["softmax", "sparsemax", "entmax-1.3", "mean"])
@pytest.mark.parametrize("name", ["Dot", "Additive", "Concatenation"])
def test_a_mask_with_the_batch_of_the_values_alone(name, map):
    affinity = AFFINITIES[name][0](*AFFINITIES[name][1:])
    q, k, v = normal(5, 4), normal(6, 4), normal(3, 6, 2)
    mask = normal(3, 5, 6) > -0.5
    each = [regard.attend(q, k, v[i], affinity, map, mask=mask[i]) for i in range(3)]
    torch.testing.assert_close(regard.attend(q, k, v, affinity, map, mask=mask), torch.stack(each))


def test_no_problem_at_all():
    """A batch of size zero has results of size zero, with gradients."""
    scores = torch.zeros(0, 4, 5, requires_grad=True)
    for how in ({}, {"tol": 1e-3}, {"tol": 1e-3, "gradient": "implicit"}, {"iterations": 0}):
        transport = regard.sinkhorn(scores, **how)
        assert transport.plan.shape == transport.weights.shape == (0, 4, 5)
        assert transport.potentials[0].shape == transport.rows.shape == (0, 4)
        assert transport.potentials[1].shape == (0, 5)
        assert transport.residual.shape == transport.converged.shape == (0,)
        transport.plan.sum().backward()
    points = torch.zeros(0, 5, 3, requires_grad=True)
    for distance in (wasserstein.exact_wasserstein, wasserstein.entropic_wasserstein, wasserstein.sliced_wasserstein):
        assert distance(points, points).shape == (0,)
        distance(points, points).sum().backward()


@pytest.mark.parametrize("size", [1e10, 1e20, 3e38])
@pytest.mark.parametrize("how", [{}, {"tol": 1e-3}, {"tol": 1e-3, "gradient": "implicit"}])
def test_gradients_of_transport_at_huge_scores(size, how):
    scores = (normal(4, 5).clamp(-1, 1) * size).requires_grad_()
    regard.sinkhorn(scores, **how).plan.square().sum().backward()
    assert scores.grad.isfinite().all()
