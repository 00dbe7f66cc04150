"""Each algorithm answers its three questions consistently, and `attend` and `explain_attend` ask the same one."""

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from attention.cases import make_affinity, make_inputs

import regard
from regard import native
from regard.attention import choice, fused, softmax_kernel
from regard.attention.algorithm import Algorithm, Plan
from regard.attention.call import Call
from regard.attention.choice import ALGORITHMS
from regard.attention.direct import Direct
from regard.attention.fused import Fused
from regard.attention.sparse import Sparse
from regard.attention.sparse_triton import SparseOnGPU

DIRECT = Direct()
KEYS = torch.tensor([True, False, True, True, True, False, True, True, True])
PAIRS = torch.rand(6, 9, generator=torch.Generator().manual_seed(3)) < 0.7
BIAS = torch.randn(6, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
HOW = {
    "plain": {},
    "keys": {"mask": KEYS},
    "pairs": {"mask": PAIRS},
    "keys and causal": {"mask": KEYS, "causal": True},
    "lower-right": {"causal": True},
    "upper-left": {"causal": "upper-left"},
    "bias": {"bias": BIAS},
    "bias of keys": {"bias": BIAS[0]},
    "wider bias": {"bias": BIAS, "dtype": torch.float32},
    "learned bias": {"bias": BIAS.clone().requires_grad_()},
    "dropout": {"dropout_p": 0.3},
    "half precision": {"dtype": torch.bfloat16},
    "wide": {"d": 72, "dv": 72},
}
MAPS = {
    "softmax": regard.softmax,
    "sparsemax": regard.sparsemax,
    "entmax": regard.entmax,
    "entmax-1.3": partial(regard.entmax, alpha=1.3),
    "mean": regard.mean,
    "gate": regard.gate,
    "one alpha for each query": regard.Entmax(torch.linspace(1.1, 1.9, 6, dtype=torch.float64).view(6, 1)),
}
SMALL, USUAL = 32, 1 << 21


class Observed(Algorithm):
    """An algorithm that says when it has computed."""

    def __init__(self, algorithm, computed):
        self.algorithm, self.computed = algorithm, computed

    def suits(self, call):
        return self.algorithm.suits(call)

    def cost(self, call):
        return self.algorithm.cost(call)

    def lacks(self, call):
        return self.algorithm.lacks(call)

    def compute(self, call):
        c = self.algorithm.compute(call)
        if c is not None:
            self.computed.append(self.algorithm)
        return c


@pytest.fixture
def computed(monkeypatch):
    """The algorithms that computed something, in order."""
    algorithms = []
    monkeypatch.setattr(choice, "ALGORITHMS", tuple(Observed(algorithm, algorithms) for algorithm in ALGORITHMS))
    return algorithms


def arguments(affinity, map_name, how):
    """Three axes, so that the usual softmax has to be chosen too."""
    options = dict(HOW[how])
    dtype, d, dv = options.pop("dtype", torch.float64), options.pop("d", 4), options.pop("dv", 3)
    q, k, v = make_inputs(d=d, dv=dv, dtype=torch.float32 if dtype == torch.bfloat16 else dtype)
    scores = regard.EmpiricalW2() if affinity == "empirical W2" else make_affinity(affinity, d, dtype)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)], {"affinity": scores, "map": MAPS[map_name]} | options


def check_choice(computed, q, k, v, **how):
    """The one that computed is the first that suits, and its plan is the one that is explained."""
    computed.clear()
    regard.attend(q, k, v, **how)
    call = Call.of(q, k, v, how.pop("affinity", regard.Dot()), how.pop("map", regard.softmax), **how)
    (algorithm,) = computed
    before = ALGORITHMS[: ALGORITHMS.index(algorithm)]
    assert algorithm.suits(call)
    assert not any(other.suits(call) for other in before)
    plan = algorithm.cost(call)
    reasons = [reason for other in before if (reason := other.lacks(call)) is not None]
    explained = regard.explain_attend(q, k, v, call.affinity, call.map, **how)
    assert explained == replace(plan, how=", because ".join([plan.how, *reasons]))
    return call, algorithm


def check_results(call, tolerance):
    """Every algorithm that suits gives the context and the gradients of the obvious program."""
    leaves = [x for x in (call.q, call.k, call.v, call.bias) if x is not None and x.requires_grad]
    expected = DIRECT.compute(call)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, leaves, direction)
    suited = [algorithm for algorithm in ALGORITHMS if algorithm.suits(call)]
    for algorithm in suited:
        c = algorithm.compute(call)
        torch.testing.assert_close(c, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            torch.autograd.grad(c, leaves, direction), gradients, rtol=10 * tolerance, atol=10 * tolerance
        )
    return suited


@pytest.mark.parametrize("budget", [SMALL, USUAL])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("affinity", ["dot", "bilinear", "concatenation", "additive", "empirical W2"])
def test_the_first_that_suits_computes_and_all_that_suit_agree(affinity, map_name, how, budget, computed, monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", budget)
    (q, k, v), options = arguments(affinity, map_name, how)
    call, _ = check_choice(computed, q, k, v, **options)
    if call.dropout == 0:  # random numbers are drawn in the order of the algorithm
        tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}[call.q.dtype]
        assert check_results(call, tolerance)


@pytest.mark.parametrize("budget", [1 << 16, USUAL])
@pytest.mark.parametrize(
    "how", [{}, {"causal": True}, {"mask": torch.rand(2, 1, 700) < 0.7}, {"bias": torch.zeros(700)}]
)
@pytest.mark.parametrize("map_", [regard.sparsemax, regard.entmax, regard.Entmax(2.0)])
def test_the_sparse_algorithm_among_the_others(map_, how, budget, computed, monkeypatch):
    """In float32; without kernels the others compute the same call."""
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", budget)
    q, k, v = (x.requires_grad_() for x in make_inputs(600, 700, 8, dtype=torch.float32))
    call, algorithm = check_choice(computed, q, k, v, affinity=regard.Dot(1.0), map=map_, **how)
    assert isinstance(algorithm, Sparse) == (native.library() is not None)
    expected = DIRECT.compute(call)
    for other in ALGORITHMS:
        if other.suits(call):
            torch.testing.assert_close(other.compute(call), expected, rtol=0, atol=2e-5)


def test_every_algorithm_is_in_the_file_of_its_name_and_computes_some_call(computed, monkeypatch):
    names = {}
    for budget in (SMALL, USUAL):
        monkeypatch.setattr("regard.attention.query_blocks.BUDGET", budget)
        for affinity, map_name in (("dot", "softmax"), ("dot", "mean"), ("concatenation", "mean"), ("dot", "gate")):
            for how in ("plain", "pairs"):
                (q, k, v), options = arguments(affinity, map_name, how)
                call, algorithm = check_choice(computed, q, k, v, **options)
                names[algorithm] = algorithm.cost(call).algorithm
    if native.library() is not None:
        q, k, v = make_inputs(600, 700, 8, dtype=torch.float32)
        call, algorithm = check_choice(computed, q, k, v, map=regard.sparsemax)
        names[algorithm] = algorithm.cost(call).algorithm
    # Kernels for GPUs are tried in tests/gpu.
    assert set(names) >= {algorithm for algorithm in ALGORITHMS if not isinstance(algorithm, (Sparse, SparseOnGPU))}
    assert len(names) == len(ALGORITHMS) - 1 - (native.library() is None)
    for algorithm, name in names.items():
        assert type(algorithm).__module__ == "regard.attention." + name.replace(" ", "_")


def test_nobody_asks_for_the_name_of_an_algorithm():
    sources = Path(regard.__file__).parent.rglob("*.py")
    asking = re.compile(r"\.algorithm\s*(==|!=|in\b)|match \w+\.algorithm")
    assert not [str(path) for path in sources if asking.search(path.read_text())]


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("affinity", ["dot", "concatenation", "additive"])
def test_a_graph_for_all_sizes_chooses_by_none(affinity, map_name, monkeypatch):
    """The choice is the same for every size, nothing is cut, and it is right."""
    choices = set()
    for lq, lk in ((1, 1), (6, 9), (600, 700)):
        monkeypatch.setattr("regard.attention.query_blocks.BUDGET", SMALL if lq == 6 else USUAL)
        q, k, v = make_inputs(lq, lk)
        call = replace(Call.of(q, k, v, make_affinity(affinity, 4), MAPS[map_name]), exporting=True)
        suited = tuple(algorithm for algorithm in ALGORITHMS if algorithm.suits(call))
        assert all(algorithm.cost(call).rows is None for algorithm in suited)
        choices.add(suited)
        if lq == 6:
            for algorithm in suited:
                torch.testing.assert_close(algorithm.compute(call), DIRECT.compute(call))
    assert len(choices) == 1
    assert suited


@pytest.mark.parametrize("affinity", ["dot", "bilinear"])
@pytest.mark.parametrize("d", [8, 72])
def test_the_usual_softmax_is_the_fused_algorithm(affinity, d, monkeypatch):
    """To the last bit, whether `attend` goes there at once or by the list; and by the list it goes nowhere else."""
    q, k, v = make_inputs(d=d, dv=d, lead=(2, 3))
    scores = make_affinity(affinity, d)
    call = Call.of(q, k, v, scores, regard.softmax)
    assert Fused().suits(call)
    at_once = regard.attend(q, k, v, scores)
    assert torch.equal(at_once, Fused().compute(call))
    monkeypatch.setattr(fused, "usual_softmax", lambda *_: None)
    torch.testing.assert_close(Fused().compute(call), at_once)
    monkeypatch.setattr(fused, "usual_softmax", lambda *_: at_once + 1)
    assert torch.equal(Fused().compute(call), at_once + 1)
    for more in ({"mask": KEYS}, {"causal": True}, {"bias": BIAS}, {"dropout_p": 1e-9}):
        context = Fused().compute(Call.of(q, k, v, scores, regard.softmax, **more))
        assert not torch.allclose(context, at_once + 1)


@pytest.mark.parametrize("keys", [6, 100])
def test_factors_of_an_affinity_derived_from_bilinear_are_asked_for(keys):
    """With few keys, and with enough for the kernel."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5, 100, 32), torch.randn(2, 5, keys, 32), torch.randn(2, 5, keys, 32)

    class Doubled(regard.Bilinear):
        def factors(self, q, k):
            first, second = super().factors(q, k)
            return 2 * first, second

    c = regard.attend(q, k, v, Doubled(torch.eye(32) / 8))
    torch.testing.assert_close(c, (q @ k.mT / 4).softmax(-1) @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (1,), (5,), (4, 2, 5)])
def test_bilinear_softmax_by_the_kernel_is_the_dense_program(lead):
    """With a weight for all, for each head, or with more axes than the queries; with gradients and errors."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 5, 100, 32, requires_grad=True) for _ in range(3))
    weight = (torch.randn(*lead, 32, 32) / 32).requires_grad_()
    c = regard.attend(q, k, v, regard.Bilinear(weight))
    wide = native.variant() in softmax_kernel.KEYS  # it needs wide registers
    assert (c.grad_fn.name() == "_SparseBackward") == (wide and len(lead) < 3)
    explicit = (q @ weight @ k.mT).softmax(-1) @ v
    torch.testing.assert_close(c, explicit, rtol=1e-4, atol=1e-5)
    leaves = q, k, v, weight
    found, expected = (torch.autograd.grad(x.square().sum(), leaves) for x in (c, explicit))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    for wrong in (math.nan, math.inf):
        for name, x in zip(("q", "k", "v", "affinity.weight"), leaves, strict=True):
            bad = {name: x.detach().clone()}
            bad[name][..., -1, 0] = wrong
            tensors = [bad.get(other, y) for other, y in zip("qkv", leaves, strict=False)]
            with pytest.raises(ValueError, match=rf"^{name}: got"):
                regard.attend(*tensors, regard.Bilinear(bad.get("affinity.weight", weight)))
    with pytest.raises(ValueError, match="overflow"):
        regard.attend(q * 1e20, k, v, regard.Bilinear(weight * 1e19))


class First(Algorithm):
    """A new algorithm, for one affinity; values below zero turn out not to suit it."""

    def suits(self, call):
        return call.affinity == regard.Dot(7.0)

    def cost(self, call):
        return Plan("first", "the first value for everybody", "O(Lq)", "O(Lq)")

    def compute(self, call):
        return call.v[..., :1, :].expand(*call.batch, call.queries, -1) if bool((call.v >= 0).all()) else None


def test_a_new_algorithm_is_one_entry_of_one_list(monkeypatch):
    monkeypatch.setattr(choice, "ALGORITHMS", (First(), *ALGORITHMS))
    q, k, v = make_inputs()
    torch.testing.assert_close(regard.attend(q, k, v.abs(), regard.Dot(7.0)), v.abs()[:, :1].expand(2, 6, 3))
    assert str(regard.explain_attend(q, k, v, regard.Dot(7.0))).startswith("first: the first value for everybody; ")
    # It hands over to the next that suits, and is not asked about other calls.
    expected = DIRECT.compute(Call.of(q, k, v, regard.Dot(7.0), regard.softmax))
    torch.testing.assert_close(regard.attend(q, k, v, regard.Dot(7.0)), expected)
    assert regard.explain_attend(q, k, v).algorithm == "fused"


def test_a_call_that_nothing_suits_says_so(monkeypatch):
    monkeypatch.setattr(choice, "ALGORITHMS", (First(),))
    q, k, v = make_inputs()
    for function in (regard.attend, regard.explain_attend):
        with pytest.raises(NotImplementedError, match=r"^no algorithm suits Call\(q=\(2, 6, 4\), k=\(2, 9, 4\), .*Dot"):
            function(q, k, v)


def test_the_plan_of_an_empty_batch():
    q, k, v = make_inputs(600, 700, lead=(0,), dtype=torch.float32)
    for map_ in MAPS.values():
        assert regard.attend(q, k, v, map=map_).shape == (0, 600, 3)
        assert regard.explain_attend(q, k, v, map=map_).time
