"""The Triton kernel of chords, in the corrected interpreter, beside the plain quadrature."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from interpreter import interpreted
from twins import random
from waits import Waits, as_on_a_device

import regard
from regard import native
from regard.continuous import quadrature
from regard.continuous.triton import chords_triton, series_of

NODES, REACH = quadrature.RULES[torch.float32]


def ellipses(shape, shortest, spread=1.0):
    y1, y2 = (4 * random(*shape, n)[..., :1] for n in (1, 2))
    short, more = (random(shape[0], 1, n)[..., :1].abs() for n in (1, 2))
    short = shortest + spread * short
    return [x.float() for x in (y1, y2, short + 4 * more, short)]


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize(("shortest", "noise"), [(0.02, 0.0), (0.8, 2.0**-22), (1.5, 2.0**-22), (8.0, 0.0)])
def test_sums(q, shortest, noise):
    for shape in ((1, 1), (3, 17), (20, 13)) if shortest >= 1.5 else ((3, 17),):
        flat = ellipses(shape, shortest)
        with interpreted(noise) as counts:
            ours = quadrature._by_kernel(flat, q, NODES, REACH)
        expected = quadrature._block(*(x.double() for x in flat), 1, q, NODES, REACH)
        single = quadrature._block(*flat, 1, q, NODES, REACH)
        scale = expected.abs().amax((0, 1)).clamp(min=1e-2)
        assert counts.kernels == ["chords_of_ellipses"]
        error, plain = (float(((x - expected) / scale).abs().max()) for x in (ours, single))
        assert error <= max(2 * plain, 5e-5), (error, plain)


def test_continuous_sparsemax_with_gradients():
    basis = regard.continuous.GaussianBasis(torch.rand(7, 2), torch.eye(2).expand(7, 2, 2) * 0.02)
    mean = torch.tensor([[0.4, 0.5], [0.1, 0.8]], requires_grad=True)
    variance = torch.tensor([[[0.05, 0.01], [0.01, 0.02]], [[0.3, 0.0], [0.0, 0.001]]], requires_grad=True)

    def result():
        r = regard.continuous.Paraboloid(mean, variance).expect(basis)
        return r.detach(), *torch.autograd.grad(r.sin().sum(), (mean, variance))

    with native.switched_off():
        expected = result()
    with as_on_a_device(), interpreted() as counts, native.switched_off():
        result()  # fills caches
        with Waits() as waits:
            ours = result()
    assert "chords_of_ellipses" in counts.kernels
    assert waits.names == []
    for x, y in zip(ours, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=2e-5 * float(y.abs().max()))


def test_operator_and_nothing():
    flat = [x.contiguous().expand(3, 4, 1).contiguous() for x in ellipses((3, 4), 1.0)]
    nodes = torch.linspace(-0.9, 0.9, 4)
    with interpreted():
        arguments = (*flat, nodes, nodes.abs(), series_of(2, nodes), 2, 5.0, 0.5)
        torch.library.opcheck(chords_triton, arguments)
        assert chords_triton(*(x[:0] for x in flat), *arguments[4:]).shape == (0, 4, 1, 6)
