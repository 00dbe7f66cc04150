"""Every spelling of one map is one value: the same result, the same plan, the same name."""

from dataclasses import FrozenInstanceError
from functools import partial

import pytest
import torch

import regard
from regard import native
from regard.maps._value import Applied, MapValue
from regard.maps.spelling import VALUES, as_map, map_name, parse_map

FROZEN = regard.nn.Entmax(2, alpha=1.5).requires_grad_(False)
SPELLINGS = {
    "softmax": [
        regard.softmax,
        regard.Softmax(),
        "softmax",
        partial(regard.softmax),
        partial(regard.entmax, alpha=1),
        regard.Entmax(1),
        "entmax-1",
        partial(regard.softmax, dim=-1),
    ],
    "sparsemax": [
        regard.sparsemax,
        regard.Sparsemax(),
        "sparsemax",
        partial(regard.sparsemax),
        regard.Entmax(2),
        partial(regard.entmax, alpha=2),
        partial(regard.entmax, alpha=2.0),
        "entmax-2",
        "entmax-2.0",
    ],
    "entmax": [regard.entmax, regard.Entmax(), "entmax", "entmax-1.5", partial(regard.entmax, alpha=1.5), FROZEN],
    "entmax-1.3": [regard.Entmax(1.3), partial(regard.entmax, alpha=1.3), "entmax-1.3", "entmax-1.30"],
    "normmax": [regard.normmax, regard.Normmax(), "normmax", "normmax-2", partial(regard.normmax, alpha=2)],
    "budget_sparsemax-3": [
        regard.BudgetSparsemax(3),
        partial(regard.budget_sparsemax, budget=3.0),
        "budget_sparsemax-3",
    ],
    "mean": [regard.mean, regard.Mean(), "mean", partial(regard.mean)],
    "gate": [regard.gate, regard.Gate(), "gate", partial(regard.gate, bias=0.0), partial(regard.gate, tau=1)],
    "sinkhorn": [regard.sinkhorn, regard.Sinkhorn(), "sinkhorn", "sinkhorn-1", partial(regard.sinkhorn, eps=1.0)],
    "tvmax-0.3": [regard.TVmax(0.3, (20, 26)), partial(regard.tvmax, gamma=0.3, shape=(20, 26))],
}
EACH = [pytest.param(name, x, id=f"{name} {place}") for name, xs in SPELLINGS.items() for place, x in enumerate(xs)]


@pytest.mark.parametrize(("name", "spelling"), EACH)
def test_one_value_one_plan_one_result(name, spelling):
    q, k, v = torch.randn(1, 2, 510, 4), torch.randn(1, 2, 520, 4), torch.randn(1, 2, 520, 3)
    value = as_map(spelling)
    first = SPELLINGS[name][0]
    assert isinstance(value, MapValue)
    assert value == as_map(first)
    assert hash(value) == hash(as_map(first))
    assert map_name(spelling) == name
    assert regard.explain_attend(q, k, v, map=spelling) == regard.explain_attend(q, k, v, map=first)
    short = (q[..., :6, :], k, v)
    assert torch.equal(regard.attend(*short, map=spelling), regard.attend(*short, map=first))
    expected = regard.attention_weights(*short[:2], map=first) @ v
    torch.testing.assert_close(regard.attend(*short, map=spelling), expected)


@pytest.mark.skipif(native.library() is None, reason="the sparse algorithm is a kernel's")
@pytest.mark.parametrize("name", ["sparsemax", "entmax"])
def test_no_spelling_misses_the_sparse_algorithm(name):
    x = torch.zeros(1, 2, 1024, 8)
    for spelling in SPELLINGS[name]:
        assert regard.explain_attend(x, x, x, map=spelling).algorithm == "sparse", spelling


@pytest.mark.parametrize("name", [name for name in SPELLINGS if not name.startswith("tvmax")])
def test_names_are_read_back(name):
    assert map_name(parse_map(name)) == name
    assert parse_map(name) == as_map(SPELLINGS[name][0])
    assert map_name(parse_map("tvmax-0.3", (2, 3))) == "tvmax-0.3"
    assert parse_map("tvmax", (2, 3)) == regard.TVmax(0.1, (2, 3))


def test_a_value_is_frozen_and_prints_as_what_it_is():
    with pytest.raises(FrozenInstanceError):
        regard.Entmax().alpha = 2.0
    assert repr(regard.Entmax(torch.ones(4, 1, 1))) == "Entmax(alpha=(4, 1, 1))"
    assert repr(regard.Sinkhorn()) == "Sinkhorn(eps=1.0, iterations=None, tol=None, gradient='unrolled')"
    assert repr(regard.TVmax(0.1, (14, 14))) == "TVmax(gamma=0.1, shape=(14, 14))"
    assert regard.Entmax(1.5) != regard.Normmax(1.5)
    assert regard.Entmax(1.5) != regard.Entmax(1.6)
    alpha = torch.tensor([1.5])
    assert regard.Entmax(alpha) == regard.Entmax(alpha) != regard.Entmax(alpha.clone())


def test_the_function_is_the_value_called():
    s = torch.randn(3, 5, dtype=torch.float64)
    mask = torch.rand(3, 5) < 0.8
    assert torch.equal(regard.Entmax(1.3)(s, 0, mask), regard.entmax(s, 1.3, 0, mask))
    assert torch.equal(regard.Gate(0.5, 2.0)(s, mask=mask), regard.gate(s, mask=mask, bias=0.5, tau=2.0))
    assert torch.equal(regard.TVmax(0.2, (1, 5))(s, mask=mask), regard.tvmax(s, 0.2, mask, (1, 5)))
    with pytest.raises(ValueError, match=r"^dim: got 0, expected -1"):
        regard.TVmax(0.2, (1, 5))(s, dim=0)


def test_a_learned_map_gives_a_value_with_its_gradient():
    learned = regard.nn.Entmax(2, alpha=1.5)
    q = torch.randn(1, 2, 6, 4)
    assert isinstance(as_map(learned).alpha, torch.Tensor)
    regard.attend(q, q, torch.randn(1, 2, 6, 3), map=learned).square().sum().backward()
    assert learned.free.grad.abs().min() > 0
    with torch.no_grad():
        learned.free[0] += 1
    assert isinstance(as_map(learned.requires_grad_(False)).alpha, torch.Tensor)  # two alphas are no number


def test_what_is_no_map_of_regards_stays_as_it_is():
    own = lambda s, *, mask: s  # noqa: E731
    assert as_map(own) is own
    columns = torch.tensor([0.2, 0.8])
    fixed = as_map(partial(regard.sinkhorn, columns=columns))
    assert isinstance(fixed, Applied)
    assert fixed.couples_rows
    assert repr(fixed) == "sinkhorn(columns=(2,))"
    s = torch.randn(3, 2)
    torch.testing.assert_close(fixed(s).plan, regard.sinkhorn(s, columns=columns).plan)
    assert fixed == as_map(partial(regard.sinkhorn, columns=columns)) != as_map(partial(own, columns=columns))
    assert as_map(partial(regard.tvmax, gamma=0.1)).of is regard.tvmax  # a grid on two axes is none of rows


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("entmux", ValueError, r"^map: got 'entmux', expected one of softmax, sparsemax, entmax or entmax-NUMBER"),
        ("softmax-2", ValueError, r"^map: got 'softmax-2'"),
        ("tvmax", ValueError, r"regard.TVmax\(gamma, \(height, width\)\)"),
        (regard.Sparsemax, TypeError, r"Make one: Sparsemax\(\.\.\.\)"),
        (3, TypeError, r"^map: got int, expected a map"),
    ],
)
def test_bad_input_is_named(given, error, message):
    with pytest.raises(error, match=message):
        regard.attend(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), map=given)


def test_every_map_has_a_value():
    functions = {kind.function for kind in VALUES.values()}
    assert {getattr(regard, name) for name in VALUES} == functions
    assert len(functions) == len(VALUES)
