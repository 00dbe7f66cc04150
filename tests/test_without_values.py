"""Tensors that have a shape and no numbers, on the meta device and in a FakeTensorMode: right shapes and dtypes."""

import inspect
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_flatten

import regard
from regard import Sinkhorn, wasserstein
from regard.continuous import Gaussian, GaussianBasis, grid

# torch looks at the gradient of what it makes a fake tensor of, and hides its own warning, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

MAPS = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "entmax": regard.entmax,
    "entmax 1.3": partial(regard.entmax, alpha=1.3),
    "entmax 3": partial(regard.entmax, alpha=3.0),
    "mean": regard.mean,
    "gate": regard.gate,
    "tvmax": partial(regard.tvmax, gamma=0.2, shape=(3, 3)),
    "Sinkhorn": Sinkhorn(),
    "Sinkhorn tol": Sinkhorn(tol=1e-3, gradient="implicit"),
}
HOWS = {
    "plain": lambda make: {},
    "mask": lambda make: {"mask": make(2, 1, 1, 9) > -1},
    "causal": lambda make: {"causal": True},
    "upper-left": lambda make: {"causal": "upper-left"},
    "bias": lambda make: {"bias": make(9)},
    "dropout": lambda make: {"dropout_p": 0.5},
}
AFFINITIES = {
    "Additive": lambda make: regard.Additive(make(4)),
    "Bilinear": lambda make: regard.Bilinear(make(4, 4)),
    "BuresW2": lambda make: regard.BuresW2(2, 1),
    "Concatenation": lambda make: regard.Concatenation(make(4), make(4)),
    "Dot": lambda make: regard.Dot(),
    "EmpiricalW2": lambda make: regard.EmpiricalW2(),
    "EntropicW2": lambda make: regard.EntropicW2(2),
    "Euclidean": lambda make: regard.Euclidean(),
    "GaussianW2": lambda make: regard.GaussianW2(),
    "HistogramW1": lambda make: regard.HistogramW1(make(4).cumsum(-1)),
    "SoftCap": lambda make: regard.SoftCap(regard.Bilinear(make(4, 4)), 2.0),
    "Unsquared": lambda make: regard.Unsquared(regard.GaussianW2()),
}


def attending(make, affinity="Dot", map="softmax", how="plain", heads=3, length=9, **more):
    q, k, v = make(2, 3, length, 4), make(2, heads, length, 4), make(2, heads, length, 4)
    if affinity == "HistogramW1":
        q, k = q.softmax(-1), k.softmax(-1)
    return regard.attend(q, k, v, AFFINITIES[affinity](make), MAPS[map], **HOWS[how](make), **more)


def losing(make, loss, **how):
    target = torch.zeros(3, dtype=torch.long, device=make(1).device)
    return loss(make(3, 5), target, **how), loss(make(3, 5), make(3, 5).softmax(-1), **how)


FUNCTIONS = {
    **{f"attend {m} {h}": partial(attending, map=m, how=h) for m in MAPS for h in HOWS},
    **{f"{a} {m}": partial(attending, affinity=a, map=m) for a in AFFINITIES for m in ("softmax", "mean", "sparsemax")},
    **{
        f"attend {m} sink": lambda make, m=m: attending(make, map=m, sink=make(3, 1, 1))
        for m in ("softmax", "sparsemax", "entmax 1.3", "tvmax")
    },
    "attend grouped": partial(attending, heads=1, map="sparsemax", enable_gqa=True),
    "attend grouped causal": partial(attending, heads=1, map="sparsemax", how="causal", enable_gqa=True),
    "attend sparse": partial(attending, map="sparsemax", length=520),
    "attend blocks": partial(attending, map="entmax 1.3", how="dropout", length=1200),
    "attention_weights": lambda make: regard.attention_weights(make(2, 6, 4), make(2, 9, 4), bias=make(9), causal=True),
    "flow FlowBounds": lambda make: tuple(regard.flow([make(2, 3, 5, 5).softmax(-1)] * 2, [0, -1], [1, 2])),
    "summarize": lambda make: regard.summarize(make(2, 6, 4), make(2, 9, 4), top=2, causal=True, rows=[0]).entropy,
    "LazyWeights": lambda make: regard.LazyWeights(make(2, 6, 4), make(2, 9, 4)).transposed_times(make(1, 6)),
    "rollout": lambda make: regard.rollout([regard.LazyWeights(make(2, 6, 4), make(2, 6, 4))], [-1]),
    "explain_attend": lambda make: str(regard.explain_attend(make(2, 6, 4), make(2, 9, 4), make(2, 9, 4))),
    "softmax": lambda make: regard.softmax(make(3, 9), mask=make(9) > -1),
    "mean": lambda make: regard.mean(make(3, 9), mask=make(9) > -1),
    "gate": lambda make: regard.gate(make(3, 9), mask=make(9) > -1),
    "sparsemax": lambda make: regard.sparsemax(make(3, 9, 2), dim=1),
    "entmax": lambda make: regard.entmax(make(3, 9), 1 + make(3, 1)),
    "inverse": lambda make: regard.inverse(-make(3, 9)),
    "normmax": lambda make: regard.normmax(make(3, 9), 1 + make(3, 1), mask=make(9) > -1),
    "budget_sparsemax": lambda make: regard.budget_sparsemax(make(3, 9), 1 + make(3, 1), mask=make(9) > -1),
    "tvmax": lambda make: regard.tvmax(make(2, 4, 5), gamma=make(1, 1, 1)),
    "sinkhorn": lambda make: (regard.sinkhorn(make(2, 4, 5)).plan, regard.sinkhorn(make(2, 4, 5), tol=0.1).plan),
    "Sinkhorn": lambda make: Sinkhorn()(make(2, 4, 5), mask=make(5) > -1),
    "Softmax Sparsemax Entmax Normmax BudgetSparsemax Mean Gate": lambda make: [
        value(make(3, 9), mask=make(9) > -1)
        for value in (
            regard.Softmax(),
            regard.Sparsemax(),
            regard.Entmax(1 + make(3, 1)),
            regard.Normmax(3.0),
            regard.BudgetSparsemax(),
            regard.Mean(),
            regard.Gate(make(3, 1)),
        )
    ],
    "TVmax Inverse": lambda make: (regard.TVmax(0.1, (2, 3))(make(4, 6)), regard.Inverse()(-make(3, 9))),
    "sparsemax_loss": partial(losing, loss=regard.sparsemax_loss),
    "entmax_loss": partial(losing, loss=regard.entmax_loss, alpha=1.3),
    "normmax_loss": partial(losing, loss=regard.normmax_loss, alpha=1.3),
    "density_loss": lambda make: regard.density_loss(
        Gaussian(make(3, 2), make(3, 2).square().diag_embed()), make(3, 9), grid(3, 3)
    ),
    "gaussian_w2": lambda make: wasserstein.gaussian_w2(make(5, 3), make(5, 3), make(4, 3), make(4, 3), pairwise=True),
    "wasserstein_1d": lambda make: wasserstein.wasserstein_1d(make(2, 5), make(2, 4)),
    "histogram_wasserstein": lambda make: wasserstein.histogram_wasserstein(*make(2, 5).softmax(-1)),
    "sliced_wasserstein": lambda make: wasserstein.sliced_wasserstein(make(2, 5, 3), make(2, 4, 3), 4),
    "entropic_wasserstein": lambda make: wasserstein.entropic_wasserstein(make(2, 5, 3), make(2, 4, 3)),
}


class Scored(nn.Module):
    """Scores by a learned affinity."""

    def __init__(self):
        super().__init__()
        self.affinity = regard.nn.Learned(regard.Bilinear, weight=torch.eye(16))

    def forward(self, x):
        return self.affinity().scores(x, x)


def tokens(make, times=1):
    return [make(9, 9, 16) for _ in range(times)]


def maps(make):
    return [make(2, 4, 9, 9)]


BASIS = GaussianBasis.on_grid(3, 3)
KINDS = ("gaussian", "embedded_gaussian", "dot_product", "concatenation")
MODULES = {
    **{f"MultiheadAttention {m}": (partial(regard.nn.MultiheadAttention, 16, 4, map=MAPS[m]), 3) for m in MAPS},
    "MultiheadAttention more": (partial(regard.nn.MultiheadAttention, 16, 4, 0.1, True, True, True, 16, 16, True), 3),
    "TransformerEncoderLayer": (partial(regard.nn.TransformerEncoderLayer, 16, 4, map=regard.sparsemax), 1),
    "TransformerDecoderLayer": (lambda: regard.nn.TransformerDecoderLayer(16, 4, map=regard.nn.Entmax(4)), 2),
    "AttentionPool": (partial(regard.nn.AttentionPool, 16, map=regard.sparsemax), 1),
    "Entmax": (partial(regard.nn.Entmax, 4), maps),
    "Gate": (partial(regard.nn.Gate, 4), maps),
    "Learned": (Scored, 1),
    "WassersteinSelfAttention": (partial(regard.nn.WassersteinSelfAttention, 16, 4), 1),
    "ContinuousAttentionPool": (partial(regard.nn.ContinuousAttentionPool, 16, grid(3, 3), BASIS), 1),
    "ContinuousSelfAttention": (partial(regard.nn.ContinuousSelfAttention, 16, 4, grid(3, 3), BASIS), 1),
    **{f"NonLocal1d {a}": (partial(regard.nn.NonLocal1d, 8, a), lambda make: [make(2, 8, 5)]) for a in KINDS},
    "NonLocal2d": (partial(regard.nn.NonLocal2d, 8), lambda make: [make(2, 8, 3, 4)]),
    "NonLocal3d": (partial(regard.nn.NonLocal3d, 8), lambda make: [make(2, 8, 3, 4, 2)]),
}


def described(result):
    """The shape and dtype of every tensor of a result, and what else is in it."""
    found = result.weights if isinstance(result, regard.Transport) else result
    if hasattr(found, "context"):  # a named result, whose density is not a tree
        found = (found.context, found.weights)
    return [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in tree_flatten(found)[0]]


def differentiated(run, given):
    """What `run` gives, and the gradients of it."""
    result = run(*given)
    tensors = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
    tensors = tensors or [x for x in (getattr(result, "context", None),) if x is not None]
    wanted = [x for x in tensors if x.requires_grad]
    grads = torch.autograd.grad([x.sum() for x in wanted], given, allow_unused=True) if wanted and given else ()
    return described(result), [None if g is None else (tuple(g.shape), g.dtype) for g in grads]


def run_function(name, **where):
    """With tensors that want gradients, made as they are asked for."""
    made = []

    def make(*shape):
        made.append(torch.rand(*shape, **where).add_(0.1).requires_grad_())
        return made[-1]

    result = FUNCTIONS[name](make)
    tensors = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    grads = torch.autograd.grad([x.sum() for x in tensors], made, allow_unused=True) if tensors else ()
    return described(result), [None if g is None else (tuple(g.shape), g.dtype) for g in grads]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_on_the_meta_device(name, dtype):
    expected = run_function(name, dtype=dtype)
    found = run_function(name, dtype=dtype, device="meta")
    if name == "explain_attend":
        return
    assert found == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_fake_tensors(name):
    expected = run_function(name)
    with FakeTensorMode():
        assert run_function(name) == expected


def run_module(name, mode=None, **where):
    make_module, inputs = MODULES[name]
    make = partial(torch.rand, **where, requires_grad=True)
    module = make_module()
    state = {key: x.to(where.get("device", "cpu")) for key, x in (*module.named_parameters(), *module.named_buffers())}
    if mode is None:
        given = inputs(make) if callable(inputs) else tokens(make, inputs)
        return differentiated(partial(module.to(where.get("device", "cpu"))), given)
    state = {key: mode.from_tensor(x) for key, x in state.items()}
    with mode:
        given = inputs(make) if callable(inputs) else tokens(make, inputs)
        return differentiated(lambda *x: functional_call(module, state, x), given)


@pytest.mark.parametrize("name", MODULES)
def test_modules_on_the_meta_device(name):
    assert run_module(name, device="meta") == run_module(name)


@pytest.mark.parametrize("name", MODULES)
def test_modules_with_fake_tensors(name):
    assert run_module(name, FakeTensorMode(allow_non_fake_inputs=True)) == run_module(name)


OTHERS = {"Affinity", "AttentionSummary", "Factored", "Map", "Plan", "Transport", "checks", "native_kernels"}
OTHERS |= {"sparse_weights"}  # its size depends on values


def test_every_public_function_and_module_is_here():
    tested = " ".join([*FUNCTIONS, *MODULES, *AFFINITIES]).split()
    for module, others in (
        (regard, OTHERS),
        (regard.nn, {"Pooled", "insert_nonlocal"}),
        (wasserstein, {"exact_wasserstein", "bures_w2", "factored_w2"}),  # one by scipy, two by their affinity
    ):
        public = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
        assert public - set(tested) == others, module
