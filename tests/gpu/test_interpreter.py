"""The corrected interpreter does as a device does, or refuses."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

import triton
import triton.language as tl
from interpreter import Race, interpreted, rounded, tf32
from triton.runtime.errors import InterpreterError


@triton.jit
def product(X, Y, Z, PRECISION: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    z = tl.dot(tl.load(X + at), tl.load(Y + at), input_precision=PRECISION)
    tl.store(Z + at, z.to(Z.dtype.element_ty))


@triton.jit
def sums(X, Y, Z):
    at = tl.arange(0, 16)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(Z + at, x + y)
    tl.store(Z + 16 + at, tl.maximum(x, y))


@triton.jit
def small_constant(X, Z):
    at = tl.arange(0, 16)
    tl.store(Z + at, tl.load(X + at) + 1e-40)


@triton.jit
def far_offset(Z, step):
    at = tl.program_id(0) * step
    tl.store(Z + at, 0.0, mask=at == 0)


@triton.jit
def past_the_end(X, Z):
    at = tl.arange(0, 16)
    tl.store(Z + at, tl.load(X + at + 1))


@triton.jit
def rooted(X, Z):
    at = tl.arange(0, 16)
    tl.store(Z + at, tl.sqrt(tl.load(X + at)))


@triton.jit
def shared_place(X, Z, STEP: tl.constexpr):
    tl.store(Z + tl.program_id(0) * STEP, tl.program_id(0) * 1.0)


@triton.jit
def read_of_another(X, Z):
    here = tl.program_id(0)
    tl.store(Z + here, tl.load(Z + 1 - here))


@triton.jit
def read_again(X, Z, BARRIER: tl.constexpr):
    tl.store(Z, 1.0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(Z + 1, tl.load(Z))


def run(kernel, *arguments, noise=0.0, grid=(1,), **more):
    with interpreted(noise) as counts:
        kernel[grid](*arguments, **more)
    return counts


def test_bfloat16_is_numbers_and_rounds_to_nearest():
    x, y = torch.randn(2, 16, 16).bfloat16()
    z = torch.empty(16, 16)
    run(product, x, y, z, "ieee")
    torch.testing.assert_close(z, x.float() @ y.float(), rtol=0, atol=1e-5)
    half = torch.empty(16, 16, dtype=torch.bfloat16)
    run(product, x, y, half, "ieee")
    assert torch.equal(half, z.bfloat16())
    out = torch.empty(32, dtype=torch.bfloat16)
    run(sums, x[0], y[0], out)
    assert torch.equal(out[:16], x[0] + y[0])
    assert torch.equal(out[16:], torch.maximum(x[0], y[0]))
    numbers = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    assert np.array_equal(rounded(numbers.numpy()), numbers.bfloat16().float().numpy())


def test_a_maximum_leaves_nan_out():
    x, y, z = torch.full((16,), float("nan")), torch.ones(16), torch.empty(32)
    run(sums, x, y, z)
    assert torch.equal(z[16:], y)


def test_tf32_is_not_exact():
    x, y = torch.randn(2, 16, 16)
    z, exact = torch.empty(16, 16), x.double() @ y.double()
    errors = {}
    for precision in ("tf32", "tf32x3", "ieee"):
        run(product, x, y, z, precision)
        errors[precision] = float((z - exact).abs().max())
    assert 1e-4 < errors["tf32"] < 1e-2
    assert errors["tf32x3"] < 5e-6
    assert errors["ieee"] < 5e-6
    assert tf32(np.float32(1 + 2**-12)) == 1


@pytest.mark.parametrize(
    ("kernel", "arguments", "grid", "said"),
    [
        (small_constant, (torch.zeros(16), torch.zeros(16)), (1,), "float64"),
        (far_offset, (torch.zeros(16), 2**30), (3,), "overflows"),
        (past_the_end, (torch.zeros(16), torch.zeros(16)), (1,), "outside"),
    ],
)
def test_what_a_device_does_otherwise_is_refused(kernel, arguments, grid, said):
    with pytest.raises(InterpreterError, match=said):
        run(kernel, *arguments, grid=grid)


def test_races_are_refused():
    z = torch.zeros(2)
    with pytest.raises(Race, match="two programs write"):
        run(shared_place, z, z, 0, grid=(2,))
    run(shared_place, z, z, 1, grid=(2,))
    with pytest.raises(Race, match="another one writes"):
        run(read_of_another, z, z, grid=(2,))
    with pytest.raises(InterpreterError, match="without a barrier"):
        run(read_again, z, z, False)
    run(read_again, z, z, True)


def test_approximate_functions_err():
    x, z = torch.rand(16) + 1, torch.empty(16)
    run(rooted, x, z, noise=2.0**-22)
    off = (z.double() / x.double().sqrt() - 1).abs()
    assert 0 < float(off.max()) < 2.0**-21
    assert run(rooted, x, z).written == 64
    assert torch.equal(z, x.sqrt())
