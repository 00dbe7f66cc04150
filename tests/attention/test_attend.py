"""Every pair of affinity and map equals the obvious program, whichever algorithm `attend` takes."""

import math
from functools import partial

import pytest
import torch
from attention.cases import AFFINITIES, MAPS, MASKS, make_affinity, make_inputs, make_mask, parameters
from hypothesis import given
from hypothesis import strategies as st
from reference import attend as reference
from reference import maps as reference_maps
from reference.structured import tvmax as reference_tvmax
from torch.autograd import gradcheck, gradgradcheck

import regard
from benchmarks.harness import peak_memory
from regard import Additive, Bilinear, Concatenation, Dot, attend, explain_attend
from regard.attention.query_blocks import BUDGET


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
@pytest.mark.parametrize("blocks", [False, True])
def test_every_pair_equals_the_obvious_program(name, map_name, kind, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = MAPS[map_name]
    q, k, v = (x.requires_grad_() for x in make_inputs())
    affinity = make_affinity(name, 4)
    for x in parameters(affinity):
        x.requires_grad_()
    how, mask = make_mask(kind, 6, 9)
    got = attend(q, k, v, affinity, ours, **how)
    expected = reference.attend(q, k, v, affinity, obvious, mask)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(got)
    leaves = [q, k, v, *parameters(affinity)]
    for g, e in zip(
        torch.autograd.grad((got * direction).sum(), leaves),
        torch.autograd.grad((expected * direction).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(g, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_float32_error_at_most_twice_that_of_the_obvious_program(name, map_name):
    ours, obvious = MAPS[map_name]
    got, naive = 0.0, 0.0
    for seed in range(5):
        torch.manual_seed(seed)
        q, k, v = make_inputs(80, 120, 16, 8, dtype=torch.float32)
        affinity = make_affinity(name, 16, torch.float32)
        double = type(affinity)(
            **{f: x.double() if isinstance(x, torch.Tensor) else x for f, x in vars(affinity).items()}
        )
        exact = reference.attend(q.double(), k.double(), v.double(), double, obvious)
        got += (attend(q, k, v, affinity, ours) - exact).square().sum().item()
        naive += (reference.attend(q, k, v, affinity, obvious) - exact).square().sum().item()
    assert math.sqrt(got) <= 2 * math.sqrt(naive)


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_gradcheck(name, map_name, small_blocks):
    affinity = make_affinity(name, 3)
    inputs = [x.requires_grad_() for x in make_inputs(3, 4, 3, 2, lead=())]
    theta = [x.requires_grad_() for x in parameters(affinity)]
    fields = [f for f, x in vars(affinity).items() if isinstance(x, torch.Tensor)]

    def f(q, k, v, *theta):
        held = type(affinity)(**(vars(affinity) | dict(zip(fields, theta, strict=True))))
        return attend(q, k, v, held, MAPS[map_name][0])

    assert gradcheck(f, (*inputs, *theta))


@pytest.mark.parametrize(
    ("name", "map_name"), [("concatenation", "mean"), ("concatenation", "softmax"), ("dot", "mean")]
)
def test_second_derivatives_of_the_cheap_algorithms(name, map_name):
    affinity = make_affinity(name, 3)
    inputs = [x.requires_grad_() for x in make_inputs(3, 4, 3, 2, lead=())]
    assert gradgradcheck(lambda q, k, v: attend(q, k, v, affinity, MAPS[map_name][0]), inputs)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize(("name", "map_name"), [("dot", "softmax"), ("concatenation", "mean"), ("dot", "sparsemax")])
@pytest.mark.parametrize("kind", MASKS)
def test_any_leading_dimensions_broadcast(lead, name, map_name, kind):
    ours, obvious = MAPS[map_name]
    q, _, _ = make_inputs(lead=lead)
    _, k, v = make_inputs(lead=lead[-1:])
    affinity = make_affinity(name, 4)
    how, mask = make_mask(kind, 6, 9, lead=lead or (1,))
    if not lead and "mask" in how:
        how, mask = {"mask": mask[0]}, mask[0]
    got = attend(q, k, v, affinity, ours, **how)
    assert got.shape == (*lead, 6, 3)
    torch.testing.assert_close(got, reference.attend(q, k, v, affinity, obvious, mask), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(), (1,), (9,), (1, 1), (6, 1), (1, 9), (2, 1, 1), (1, 6, 9)])
@pytest.mark.parametrize("map_name", ["softmax", "mean", "sparsemax"])
@pytest.mark.parametrize("name", ["dot", "concatenation"])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_mask_of_any_shape_that_broadcasts(shape, name, map_name, blocks, request):
    if blocks:
        request.getfixturevalue("small_blocks")
    ours, obvious = MAPS[map_name]
    q, k, v = make_inputs()
    affinity = make_affinity(name, 4)
    for mask in (torch.rand(shape) < 0.5, torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)):
        expected = reference.attend(q, k, v, affinity, obvious, mask.expand(2, 6, 9))
        torch.testing.assert_close(attend(q, k, v, affinity, ours, mask), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("lq", "lk"), [(1, 9), (9, 1), (5, 9), (9, 5), (1, 1)])
@pytest.mark.parametrize("map_name", MAPS)
def test_causal_with_unequal_lengths(lq, lk, map_name, small_blocks):
    """The last query sees every key, as it must while generating; queries before the first key get zeros."""
    ours, obvious = MAPS[map_name]
    q, k, v = make_inputs(lq, lk)
    expected = reference.attend(q, k, v, Dot(), obvious, reference.causal_mask(lq, lk))
    torch.testing.assert_close(attend(q, k, v, map=ours, causal=True), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_weights_are_those_of_attend(name, kind):
    q, k, v = make_inputs()
    affinity = make_affinity(name, 4)
    how, _ = make_mask(kind, 6, 9)
    p = regard.attention_weights(q, k, affinity, regard.sparsemax, **how)
    torch.testing.assert_close(p @ v, attend(q, k, v, affinity, regard.sparsemax, **how))


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_a_query_with_no_key_gets_zeros_and_zero_gradients(name, map_name):
    q, k, v = (x.requires_grad_() for x in make_inputs(dtype=torch.float32))
    mask = torch.ones(2, 6, 9, dtype=torch.bool)
    mask[1, 2] = False
    for m in (mask, torch.zeros(2, 1, 9, dtype=torch.bool)):
        dead = ~m.expand(2, 6, 9).any(-1)
        c = attend(q, k, v, make_affinity(name, 4, torch.float32), MAPS[map_name][0], m)
        grads = torch.autograd.grad((c * torch.randn_like(c)).sum(), (q, k, v))
        assert (c[dead] == 0).all()
        assert (grads[0][dead] == 0).all()
        assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", AFFINITIES)
def test_half_precision(name, map_name, dtype):
    q, k, v = make_inputs(dtype=torch.float32)
    affinity = make_affinity(name, 4, torch.float32)
    c = attend(q.to(dtype), k.to(dtype), v.to(dtype), affinity, MAPS[map_name][0])
    exact = attend(*(x.to(dtype).float() for x in (q, k, v)), affinity, MAPS[map_name][0])
    assert c.dtype == dtype
    torch.testing.assert_close(c.float(), exact, rtol=2e-2, atol=2e-2)


def test_gradients_reach_a_learned_alpha(small_blocks):
    q, k, v = make_inputs(lead=(2, 3))
    alpha = torch.tensor([1.2, 1.5, 1.9], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    assert explain_attend(q, k, v, map=partial(regard.entmax, alpha=alpha)).algorithm == "blocks"
    assert gradcheck(lambda a: attend(q, k, v, map=partial(regard.entmax, alpha=a)), alpha)
    each = torch.linspace(1.1, 1.9, 6, dtype=torch.float64).view(6, 1)
    c = attend(q, k, v, map=partial(regard.entmax, alpha=each))
    for i in range(6):
        alone = attend(q[..., i : i + 1, :], k, v, map=partial(regard.entmax, alpha=each[i].item()))
        torch.testing.assert_close(c[..., i : i + 1, :], alone)


@pytest.mark.parametrize("name", AFFINITIES)
@pytest.mark.parametrize("masked", [False, True])
def test_tvmax_over_keys_on_a_grid(name, masked, monkeypatch):
    """Against one quadratic program a query; blocks and the whole have the same gradients."""
    q, k, v = (x.requires_grad_() for x in make_inputs(lead=()))
    affinity = make_affinity(name, 4)
    mask = torch.rand(1, 9) < 0.7 if masked else None
    map_ = partial(regard.tvmax, gamma=0.2, shape=(3, 3))
    whole = attend(q, k, v, affinity, map_, mask)
    with torch.no_grad():
        on_grid = None if mask is None else mask.reshape(3, 3).numpy()
        rows = reference.scores(affinity, q, k).reshape(-1, 3, 3).numpy()
        p = torch.stack([torch.from_numpy(reference_tvmax(row, 0.2, on_grid)).flatten() for row in rows])
    torch.testing.assert_close(whole, p @ v, rtol=0, atol=1e-6)  # what the quadratic program reaches
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 20)
    blocks = attend(q, k, v, affinity, map_, mask)
    assert explain_attend(q, k, v, affinity, map_, mask).algorithm == "blocks"
    torch.testing.assert_close(blocks, whole)
    grads = [torch.autograd.grad(c.square().sum(), (q, k, v)) for c in (whole, blocks)]
    torch.testing.assert_close(grads[0], grads[1])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**30), st.sampled_from([0.0, 100.0, -30.0]))
def test_sorted_concatenation_with_ties_and_offsets(lq, lk, seed, offset):
    """Whole numbers make many sums exactly zero, where the derivative of ReLU is zero by convention."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randint(-3, 4, (lq, 1), generator=g).double().add_(offset).requires_grad_()
    k = torch.randint(-3, 4, (lk, 1), generator=g).double().sub_(offset).requires_grad_()
    v = torch.randn(lk, 2, generator=g, dtype=torch.float64)
    affinity = Concatenation(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    for map_name in ("mean", "softmax"):
        ours, obvious = MAPS[map_name]
        got, expected = attend(q, k, v, affinity, ours), reference.attend(q, k, v, affinity, obvious)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)
        if map_name == "mean":
            grads = [torch.autograd.grad(x.square().sum(), (q, k)) for x in (got, torch.relu(q + k.mT) @ v / lk)]
            torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-9)


def test_concatenation_softmax_with_huge_scores():
    q, k, v = make_inputs(dtype=torch.float32)
    affinity = Concatenation(torch.full((4,), 300.0), torch.full((4,), 300.0))
    expected = reference.attend(q, k, v, affinity, reference_maps.softmax)
    torch.testing.assert_close(attend(q, k, v, affinity), expected)


@pytest.mark.parametrize(
    ("name", "map_", "how", "algorithm"),
    [
        ("dot", regard.softmax, {}, "fused"),
        ("gaussian", partial(regard.entmax, alpha=1), {}, "fused"),
        ("bilinear", regard.softmax, {"causal": True}, "fused"),
        ("dot", regard.mean, {}, "associative"),
        ("bilinear", regard.mean, {"mask": torch.ones(1, 3000, dtype=torch.bool)}, "associative"),
        ("concatenation", regard.mean, {}, "sorted"),
        ("concatenation", regard.softmax, {}, "sorted"),
        ("concatenation", regard.mean, {"causal": True}, "blocks"),
        ("dot", regard.mean, {"causal": True}, "blocks"),
        ("dot", regard.sparsemax, {"dropout_p": 0.1}, "blocks"),
        ("additive", regard.softmax, {}, "blocks"),
        ("dot", regard.softmax, {"mask": torch.ones(3000, 3000, dtype=torch.bool)}, "fused blocks"),
        ("dot", regard.softmax, {"mask": torch.ones(1, 3000, dtype=torch.bool), "causal": True}, "fused blocks"),
    ],
)
def test_the_plan(name, map_, how, algorithm):
    q, k, v = make_inputs(3000, 3000)
    plan = explain_attend(q, k, v, make_affinity(name, 4), map_, **how)
    assert plan.algorithm == algorithm
    assert algorithm in str(plan)
    assert (plan.rows is not None) == ("blocks" in algorithm)
    assert plan.rows is None or 0 < plan.rows < 3000


def test_blocks_are_bounded_by_the_budget():
    q, k, v = make_inputs(3000, 3000, lead=(2, 2))
    assert explain_attend(q, k, v, map=regard.sparsemax, dropout_p=0.1).rows * 4 * 3000 <= BUDGET
    assert explain_attend(q, k, v, make_affinity("additive", 4), regard.sparsemax).rows * 4 * 3000 * 4 <= BUDGET


def test_small_problems_take_the_cheaper_order_of_products():
    q, k, v = make_inputs(4, 4, d=512, dv=512)
    assert explain_attend(q, k, v, map=regard.mean).algorithm == "direct"


def test_a_map_that_couples_rows_gets_them_all(small_blocks):
    seen = []

    def whole(s, mask=None):
        seen.append(s.shape)
        return regard.softmax(s, mask=mask)

    whole.couples_rows = True
    q, k, v = make_inputs()
    attend(q, k, v, map=whole)
    attend(q, k, v, map=partial(whole))
    assert seen == [(2, 6, 9), (2, 6, 9)]


def test_any_callable_is_a_map(small_blocks):
    q, k, v = make_inputs()
    torch.testing.assert_close(attend(q, k, v, map=lambda s, mask: torch.softmax(s, -1)), attend(q, k, v))


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("name", ["dot", "concatenation"])
@pytest.mark.once
def test_compile_and_function_transforms(name, map_name):
    ours = MAPS[map_name][0]
    affinity = make_affinity(name, 4)
    f = lambda q, k, v: attend(q, k, v, affinity, ours)  # noqa: E731
    torch.compiler.reset()
    q, k, v = make_inputs()
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v), f(q, k, v))
    torch.testing.assert_close(torch.func.vmap(f)(q, k, v), f(q, k, v))
    loss = lambda q: f(q, k, v).square().sum()  # noqa: E731
    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(q), torch.autograd.grad(loss(leaf), leaf)[0])


@pytest.mark.parametrize("map_name", ["sparsemax", "softmax"])
@pytest.mark.once
def test_memory_is_that_of_blocks(map_name):
    """Forward and backward at N = 4096, batch 2: scores, weights and their gradients alone would take 536 MB."""
    setup = f"""
import torch, regard
q, k, v = (torch.randn(2, 4096, 32, requires_grad=True) for _ in range(3))
run = lambda n: regard.attend(q[:, :n], k[:, :n], v[:, :n], map=regard.{map_name}, causal=True).sum().backward()
run(64)
"""
    assert 0 < peak_memory(setup, "run(4096)") < 250


def test_empty_queries_and_batches():
    assert attend(torch.zeros(2, 0, 4), torch.zeros(2, 3, 4), torch.zeros(2, 3, 5)).shape == (2, 0, 5)
    assert attend(torch.zeros(0, 2, 4), torch.zeros(0, 3, 4), torch.zeros(0, 3, 5)).shape == (0, 2, 5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": torch.zeros(4)}, ValueError, r"^q: got shape \(4,\), expected at least 2 dimensions"),
        ({"q": torch.full((6, 4), torch.nan)}, ValueError, r"^q: got NaN, expected finite"),
        ({"k": torch.full((9, 4), torch.inf)}, ValueError, r"^k: got an infinity"),
        ({"v": torch.full((9, 3), torch.nan)}, ValueError, r"^v: got NaN"),
        (
            {"k": torch.full((9, 4), 1e30), "q": torch.full((6, 4), 1e30), "v": torch.ones(9, 3)},
            ValueError,
            r"^(q, k|s): got .*(overflow|inf)",
        ),
        ({"k": torch.zeros(9, 5)}, ValueError, r"^k: got width 5, expected the width of q, 4"),
        ({"v": torch.zeros(8, 3)}, ValueError, r"^v: got 8 values, expected one for each of the 9 keys"),
        ({"k": torch.zeros(0, 4), "v": torch.zeros(0, 3)}, ValueError, r"^k: got no keys"),
        ({"q": torch.zeros(3, 6, 4), "k": torch.zeros(2, 9, 4)}, ValueError, r"^q, k, v: got q \(3, 6, 4\)"),
        ({"v": torch.zeros(9, 3).double()}, TypeError, r"^v: got torch.float64, expected the dtype of q"),
        ({"mask": torch.zeros(6, 9)}, TypeError, r"^mask: got torch.float32, expected a boolean tensor"),
        ({"mask": torch.ones(9, 6, dtype=torch.bool)}, ValueError, r"^mask: got shape \(9, 6\), .* \(6, 9\)"),
        ({"affinity": Dot}, TypeError, r"^affinity: got Dot, expected an Affinity object"),
        ({"affinity": Additive(torch.ones(5))}, ValueError, r"^v: got length 5"),
        ({"affinity": Concatenation(torch.ones(5), torch.ones(4))}, ValueError, r"^w_q: got length 5"),
        ({"affinity": Bilinear(torch.ones(5, 4))}, ValueError, r"^weight: got shape \(5, 4\)"),
    ],
)
@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax, regard.mean])
def test_bad_input_is_named(change, error, message, map_):
    arguments = {"q": torch.zeros(6, 4), "k": torch.zeros(9, 4), "v": torch.zeros(9, 3), "map": map_} | change
    with pytest.raises(error, match=message):
        attend(**arguments)


def test_bad_affinities_are_named():
    with pytest.raises(ValueError, match=r"^scale: got inf"):
        Dot(math.inf)
    with pytest.raises(TypeError, match=r"^weight: got list"):
        Bilinear([[1.0]])
    with pytest.raises(AttributeError):
        Dot().scale = 2.0
