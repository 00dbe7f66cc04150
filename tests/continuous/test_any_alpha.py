"""Densities of every alpha between one and three: against adaptive integration, and at the limits."""

import math

import numpy as np
import pytest
import torch
from reference.continuous import ball_expectation, normal_pdf
from scipy.integrate import quad

from regard import continuous as C
from regard.continuous import _gamma, chord, quadrature
from regard.continuous.moments import density_of

ALPHAS = [1.05, 1.2, 4 / 3, 1.5, 1.7, 2, 2.5, 3]
MEAN = torch.tensor([0.3, -0.2], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
CENTRES = torch.tensor([[0.0, 0.0], [0.5, -0.5], [1.4, 0.6], [-0.8, 0.4], [3.0, 3.0]], dtype=torch.float64)
# From a function much narrower than the density to one much wider.
WIDTHS = [1e-3, 0.05, 1.0, 50.0]


def make(alpha, d=2, dtype=torch.float64):
    return C.BetaGaussian(MEAN[:d].to(dtype), COVARIANCE[:d, :d].to(dtype), alpha)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_mass_and_moments_on_the_line_by_adaptive_integration(alpha):
    """Equations (5.4) to (5.6), from the score and the deformed exponential alone."""
    density = make(alpha, 1)
    sigma, mu = density.scale.item(), MEAN[0].item()
    low, high = (x.item() for x in density.support)
    # The threshold is where the score meets the edge of the support: exp_beta is zero there.
    edge = -((high - mu) ** 2) / (2 * sigma) + 1 / (alpha - 1)

    def p(t):
        score = torch.tensor(-((t - mu) ** 2) / (2 * sigma) - edge, dtype=torch.float64)
        return C.exp_beta(score, 2 - alpha).item()

    points = np.linspace(low, high, 9)[1:-1]
    integral = lambda f: quad(f, low, high, points=points, epsabs=1e-11, limit=400)[0]  # noqa: E731
    assert abs(integral(p) - 1) < 1e-8
    assert abs(integral(lambda t: t * p(t)) - mu) < 1e-8
    assert abs(integral(lambda t: (t - mu) ** 2 * p(t)) - density.covariance.item()) < 1e-8
    entropy = integral(lambda t: -p(t) * math.log(max(p(t), 1e-300)))
    assert abs(entropy - density.entropy().item()) < 1e-7
    for t in (low - 0.1, low + 1e-3, mu, high - 1e-3, high + 0.1):
        assert abs(density.pdf(torch.tensor([[t]], dtype=torch.float64)).item() - p(t)) < 1e-9 * p(mu)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_any_dimension_by_the_radius(alpha, d):
    """Mass, variance and Theorem 1 in d dimensions, by an integral over shells."""
    generator = torch.Generator().manual_seed(d)
    half = torch.randn(d, d, generator=generator, dtype=torch.float64)
    precision, linear = half @ half.mT + torch.eye(d), torch.randn(d, generator=generator, dtype=torch.float64)
    density = C.from_canonical(linear, -precision / 2, alpha)
    torch.testing.assert_close(density.mean, torch.linalg.solve(precision, linear))
    torch.testing.assert_close(torch.linalg.inv(density.scale), precision)
    factor = torch.linalg.cholesky(density.covariance)
    direction = torch.nn.functional.normalize(torch.ones(d, dtype=torch.float64), dim=0)
    area = 2 * math.pi ** (d / 2) / math.gamma(d / 2) * factor.diagonal().prod().item()

    def shell(r):
        return area * r ** (d - 1) * density.log_prob(density.mean + factor @ (r * direction)).exp().item()

    end = math.sqrt(d + 2 * density.power + 2)
    points = [end * k / 8 for k in range(1, 8)]
    assert abs(quad(shell, 0, end, points=points, limit=400)[0] - 1) < 1e-7
    # E|z|^2 = d for whitened coordinates.
    assert abs(quad(lambda r: r * r * shell(r), 0, end, points=points, limit=400)[0] - d) < 1e-6 * d
    assert shell(end * 1.0001) == 0 < shell(end * 0.9999)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_expectations_of_gaussian_functions(alpha, d, width):
    """Equations (5.13) and (5.30), relative to the largest; narrow ones by the density and its derivatives instead."""
    density, basis = make(alpha, d), C.GaussianBasis(CENTRES[:, :d], width)
    if width == 1e-3:
        # An integral over the bump alone: the density is smooth there, or zero.
        x, w = np.polynomial.hermite_e.hermegauss(160)
        nodes = torch.from_numpy(np.stack(np.meshgrid(*[x] * d), -1).reshape(-1, d)) * math.sqrt(width)
        weights = torch.from_numpy(np.stack(np.meshgrid(*[w] * d), -1).reshape(-1, d).prod(-1))
        p = density.pdf((basis.centres[:, None] + nodes).reshape(-1, d)).reshape(len(basis), -1)
        expected = (p @ weights / weights.sum()).numpy()
    else:
        function = lambda t, u: normal_pdf(t, basis.centres.numpy(), basis.covariance.numpy())  # noqa: E731
        expected = ball_expectation(function, density.mean, density.covariance, density.power, 1e-9)
    assert np.abs(density.expect(basis).numpy() - expected).max() <= 1e-6 * expected.max()
    single = make(alpha, d, torch.float32).expect(basis)
    assert single.dtype == torch.float32
    assert np.abs(single.numpy() - expected).max() <= 1e-4 * expected.max()


@pytest.mark.parametrize("width", [0.05, 1.0])
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.7, 2.5, 3])
def test_gradcheck(alpha, d, width):
    basis = C.GaussianBasis(CENTRES[:, :d], width)
    factor = torch.linalg.cholesky(COVARIANCE[:d, :d]).requires_grad_()
    mean = MEAN[:d].clone().requires_grad_()
    expectation = lambda m, f: C.from_cholesky(m, f, alpha).expect(basis)  # noqa: E731
    assert torch.autograd.gradcheck(expectation, (mean, factor), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("alpha", [1.05, 1.7, 2.5, 3])
def test_gradcheck_of_the_whole_way_from_weights(alpha):
    weights = torch.rand(2, 12, dtype=torch.float64, requires_grad=True)
    for basis in (C.GaussianBasis.on_grid(2, 3, variance=0.02), C.FourierBasis.on_grid(3, 3)):
        assert torch.autograd.gradcheck(lambda w, b=basis: C.match_moments(w, C.grid(3, 4), alpha).expect(b), weights)


@pytest.mark.parametrize("alpha", [1.05, 1.2, 1.7, 2.5, 3])
def test_fourier_and_paraboloid_functions(alpha):
    density = C.BetaGaussian(MEAN + 0.3, COVARIANCE / 20, alpha)
    bases = {C.FourierBasis.on_grid(4, 4): 1e-8, C.ParaboloidBasis(CENTRES / 3 + 0.5, COVARIANCE / 10): 1e-5}
    for basis, tolerance in bases.items():
        function = lambda t, u, basis=basis: basis(torch.from_numpy(t)).numpy()  # noqa: E731
        expected = ball_expectation(function, density.mean, density.covariance, density.power, tolerance / 10)
        assert np.abs(density.expect(basis).numpy() - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(("d", "power"), [(1, -0.5), (1, -0.4), (1, 0), (1, 0.25), (2, -0.5), (2, 0), (2, 0.25)])
def test_other_powers(d, power):
    """PearsonTypeII below the powers of the maps, down to where the density has poles at its edge."""
    density = C.PearsonTypeII(MEAN[:d], COVARIANCE[:d, :d], power)
    for width in (0.05, 1.0):
        basis = C.GaussianBasis(CENTRES[:, :d], width)
        function = lambda t, u, basis=basis: normal_pdf(t, basis.centres.numpy(), basis.covariance.numpy())  # noqa: E731
        expected = ball_expectation(function, density.mean, density.covariance, power, 1e-8)
        assert np.abs(density.expect(basis).numpy() - expected).max() <= 1e-5 * expected.max()
    mean, factor = MEAN[:d].clone().requires_grad_(), torch.linalg.cholesky(COVARIANCE[:d, :d]).requires_grad_()
    expectation = lambda m, f: C.PearsonTypeII(m, f @ f.mT, power).expect(basis)  # noqa: E731
    assert torch.autograd.gradcheck(expectation, (mean, factor), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("basis", ["gaussian", "fourier", "paraboloid"])
@pytest.mark.parametrize("excess", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("d", [1, 2])
def test_the_limit_at_one_is_the_gaussian(excess, d, basis):
    """Values, gradients, log-density, entropy and scale, to the order of alpha - 1."""
    make_basis = {
        "gaussian": lambda: C.GaussianBasis(CENTRES[:, :d], 0.2),
        "fourier": lambda: C.FourierBasis(CENTRES[:, :d]),
        "paraboloid": lambda: C.ParaboloidBasis(CENTRES[:, :d], 0.2),
    }
    functions = make_basis[basis]()
    tolerance = 3 * excess + (2e-6 if basis == "paraboloid" else 3e-8)
    results = []
    for alpha in (1 + excess, 1):
        mean = MEAN[:d].clone().requires_grad_()
        covariance = COVARIANCE[:d, :d].clone().requires_grad_()
        r = density_of(mean, covariance, alpha).expect(functions)
        results.append((r, *torch.autograd.grad(r.sin().sum(), (mean, covariance))))
    for near, gaussian in zip(*results, strict=True):
        assert (near - gaussian).abs().max() <= (tolerance * 3) * gaussian.abs().max()
    near, gaussian = C.BetaGaussian(MEAN[:d], COVARIANCE[:d, :d], 1 + excess), C.Gaussian(MEAN[:d], COVARIANCE[:d, :d])
    t = torch.randn(20, d, dtype=torch.float64)
    torch.testing.assert_close(near.log_prob(t), gaussian.log_prob(t), rtol=0, atol=100 * excess + 1e-9)
    torch.testing.assert_close(near.entropy(), gaussian.entropy(), rtol=0, atol=3 * excess + 1e-9)
    # Sigma of the score goes to the covariance like (alpha - 1) log(1 / (alpha - 1)).
    torch.testing.assert_close(near.scale, gaussian.covariance, rtol=0, atol=40 * excess + 1e-9)
    inverse = torch.linalg.inv(COVARIANCE[:d, :d])
    back = C.from_canonical(inverse @ MEAN[:d], -inverse / 2, 1 + excess)
    torch.testing.assert_close(back.covariance, gaussian.covariance, rtol=0, atol=40 * excess + 1e-9)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("alpha", [2, 1.5, 4 / 3])
def test_whole_powers_are_no_special_case(alpha, d):
    """The closed form along chords and the nodes for any power meet at p = 1, 2 and 3."""
    basis = C.GaussianBasis(CENTRES[:, :d], 0.05)
    results = []
    for a in (alpha, alpha + 1e-7):
        mean, covariance = MEAN[:d].clone().requires_grad_(), COVARIANCE[:d, :d].clone().requires_grad_()
        r = C.BetaGaussian(mean, covariance, a).expect(basis)
        results.append((r, *torch.autograd.grad(r.sin().sum(), (mean, covariance))))
    for closed, nodes in zip(*results, strict=True):
        assert (closed - nodes).abs().max() <= 3e-6 * closed.abs().max()


@pytest.mark.parametrize("p", [-0.5, 0.0, 0.5, 1.0, 2.5, 30.0])
@pytest.mark.parametrize("h", [0.01, 1.0, 5.0, 200.0])
def test_chord_integrals_by_nodes(p, h):
    """Equations (5.14) and (5.30) by adaptive integration in the angle, relative to the largest."""
    found, wanted = [], []
    for delta in (0.0, 0.7, -0.98 * h):
        pair = torch.tensor([delta, h], dtype=torch.float64)
        found.append([x.item() for x in chord.by_nodes(*pair, p, 32, 7.0)])

        def integral(power, factor, delta=delta):
            def f(a):
                y = delta + h * math.sin(a)
                return math.cos(a) ** (2 * power + 1) * factor(y) * math.exp(-y * y / 2) / math.sqrt(2 * math.pi)

            ends = [math.asin(max(-1.0, min(1.0, (k - delta) / h))) for k in (-6, -2, 0, 2, 6)]
            return quad(f, -math.pi / 2, math.pi / 2, points=ends, epsabs=1e-14, limit=500)[0]

        one, y, bend = (lambda y: 1.0), (lambda y: y), (lambda y: y * y - 1)
        wanted.append(
            [integral(p, one), integral(p, y), integral(p + 1, one), integral(p + 1, y), integral(p + 1, bend)]
        )
    assert np.abs(np.array(found) - wanted).max() <= 3e-8 * np.abs(wanted).max()


def test_gamma_ratios_of_every_size():
    for d in (1, 2, 3, 5, 8):
        for x in (0.5, 1.0, 3.7, 99.0, 101.0, 5e3):
            expected = math.lgamma(x + d / 2) - math.lgamma(x)
            assert math.isclose(_gamma.log_gamma_ratio(x, d), expected, rel_tol=1e-11, abs_tol=1e-11)
            step = 1e-4 * x
            slope = (_gamma.log_gamma_ratio(x + step, d) - _gamma.log_gamma_ratio(x - step, d)) / (2 * step)
            assert math.isclose(_gamma.digamma_difference(x, d), slope, rel_tol=1e-6)
        # Gamma(x + d/2) / Gamma(x) = x^(d/2) (1 + d (d - 2) / (8 x) + ...)
        assert math.isclose(_gamma.log_gamma_ratio(1e12, d), d / 2 * math.log(1e12), rel_tol=1e-12)


def test_nodes_do_not_depend_on_blocks(monkeypatch):
    density = C.match_moments(torch.rand(7, 196), C.grid(14, 14), alpha=1.7)
    basis = C.GaussianBasis.on_grid(4, 4, variance=1e-3)
    whole = density.expect(basis)
    monkeypatch.setattr(quadrature, "_BLOCK", 1000)
    torch.testing.assert_close(density.expect(basis), whole)


def test_mixture_of_any_family():
    parts = C.BetaGaussian(CENTRES[:2], COVARIANCE.expand(2, 2, 2), 1.3)
    mixture = C.Mixture(torch.tensor([0.3, 0.7], dtype=torch.float64), parts)
    axis = torch.linspace(-6, 6, 700, dtype=torch.float64)
    p = mixture.pdf(torch.cartesian_prod(axis, axis))
    cell = (axis[1] - axis[0]) ** 2
    assert abs(p.sum() * cell - 1) < 1e-4
    assert abs(-(p * p.clamp_min(1e-300).log()).sum() * cell - mixture.entropy()) < 1e-3
    for alpha in (1.02, 1 + 1e-6):
        near = C.Mixture(mixture.mixing, C.BetaGaussian(parts.mean, parts.covariance, alpha)).entropy()
        gaussian = C.Mixture(mixture.mixing, C.Gaussian(parts.mean, parts.covariance)).entropy()
        assert abs(near - gaussian) < 1e-3 + (alpha - 1)


def test_errors():
    for alpha in (0.5, 3.01, math.inf, math.nan):
        with pytest.raises(ValueError, match="alpha: got"):
            C.match_moments(torch.ones(4), C.line(4), alpha=alpha)
    for make_one in (C.match_moments, lambda w, c, a: C.from_cholesky(torch.zeros(2), torch.eye(2), a)):
        with pytest.raises(TypeError, match=r"alpha: got tensor.* a learned alpha is not supported"):
            make_one(torch.ones(4), C.line(4), torch.tensor(1.5))
    with pytest.raises(ValueError, match="alpha: got 1"):
        C.BetaGaussian(torch.zeros(2), torch.eye(2), 1)
    with pytest.raises(ValueError, match="power: got -1"):
        C.PearsonTypeII(torch.zeros(2), torch.eye(2), -1)
