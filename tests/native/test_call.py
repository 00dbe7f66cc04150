"""A call of a kernel that does not fit the table is an error that says why, and runs nothing."""

import pytest
import torch

from regard import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")


def arguments(**changed):
    """Those of a right call for 3 rows of 5, with some changed."""
    right = {
        "x": torch.randn(3, 5),
        "p": torch.empty(3, 5),
        "rows": 3,
        "n": 5,
        "alpha": torch.tensor([2.0], dtype=torch.float64),
        "alphas": 1,
    }
    return list((right | changed).values())


def test_a_right_call_runs():
    x, p, *_ = given = arguments()
    assert native.call("regard_entmax_f32", *given) == 0
    torch.testing.assert_close(p.sum(-1), torch.ones(3))
    assert native.call("regard_entmax_f32", *arguments(x=x.index_fill(1, torch.tensor(2), torch.nan))) != 0


WRONG = {
    "dtype": (lambda: {"x": torch.zeros(3, 5, dtype=torch.float64)}, TypeError, "x: got torch.float64, expected a ten"),
    "dtype of the parameter": (lambda: {"alpha": torch.ones(1)}, TypeError, "alpha: got torch.float32, expected"),
    "no tensor": (lambda: {"x": [1.0]}, TypeError, "x: got list, expected a tensor of torch.float32"),
    "nothing": (lambda: {"p": None}, TypeError, "p: got NoneType, expected a tensor of torch.float32"),
    "a tensor for a number": (lambda: {"n": torch.ones(2)}, TypeError, r"n: got Tensor, expected a number \(int64_t\)"),
    "a fraction for a size": (lambda: {"n": 5.0}, TypeError, r"n: got float, expected a number \(int64_t\)"),
    "a string for a size": (lambda: {"rows": "3"}, TypeError, r"rows: got str, expected a number"),
    "strided": (lambda: {"x": torch.zeros(5, 3).mT}, ValueError, "x: got strided memory on cpu, expected contiguous"),
    "another device": (lambda: {"p": torch.empty(3, 5, device="meta")}, ValueError, "p: got contiguous memory on meta"),
    "too short": (lambda: {"p": torch.empty(14)}, ValueError, r"p: got 14 entries, expected 15, which is rows \* n"),
    "too many rows": (lambda: {"rows": 4}, ValueError, r"x: got 15 entries, expected 20, which is rows \* n"),
    "too few alphas": (lambda: {"alphas": 3}, ValueError, "alpha: got 1 entries, expected 3, which is alphas"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name):
    changed, kind, message = WRONG[name]
    with pytest.raises(kind, match=f"^regard_entmax_f32, {message}"):
        native.call("regard_entmax_f32", *arguments(**changed()))


@pytest.mark.parametrize("count", [0, 5, 7])
def test_a_wrong_number_of_arguments_is_named(count):
    given = [*arguments(), 1][:count]
    with pytest.raises(TypeError, match=rf"got {count} arguments, expected 6 \(x, p, rows, n, alpha, alphas\)"):
        native.call("regard_entmax_f32", *given)


def test_an_unknown_kernel_is_an_error():
    with pytest.raises(KeyError, match="regard_nothing"):
        native.call("regard_nothing")


def test_there_is_nothing_to_call_when_they_are_switched_off():
    with native.switched_off():
        assert native.library() is None
        assert not native.usable(torch.zeros(3))
        assert native.largest(torch.zeros(3)) is None
        with pytest.raises(RuntimeError, match=r"regard_entmax_f32: there are no kernels"):
            native.call("regard_entmax_f32", *arguments())
    assert native.usable(torch.zeros(3))


def test_what_is_usable():
    x = torch.zeros(3)
    assert native.usable(x, x.double().float(), torch.nn.Parameter(x))
    assert not native.usable(x, x.double())
    assert not native.usable(x.half())
    assert not native.usable(x.to("meta"))
    assert not torch.func.vmap(lambda y: torch.tensor(native.usable(y)))(x).any()
