"""The deformed exponential and logarithm, and escort distributions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import continuous as C

BETAS = [-1.0, 0.0, 0.5, 1 - 1e-9, 1.0, 1 + 1e-9, 1.3, 2.0]


@pytest.mark.parametrize("beta", BETAS)
def test_they_are_inverses_and_what_they_say(beta):
    """Equation (5.32)."""
    u = torch.linspace(0.05, 4, 50, dtype=torch.float64)
    logs = C.log_beta(u, beta)
    torch.testing.assert_close(C.exp_beta(logs, beta), u)
    printed = u.log() if abs(beta - 1) < 1e-6 else (u ** (1 - beta) - 1) / (1 - beta)
    torch.testing.assert_close(logs, printed, rtol=1e-7, atol=1e-8)
    inner = u.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: C.log_beta(x, beta), inner)
    assert torch.autograd.gradcheck(lambda x: C.exp_beta(C.log_beta(x, beta), beta), inner)


def test_the_ends():
    u = torch.tensor([-3.0, -1.0, 0.0, 1.0, 4.0])
    assert C.exp_beta(u, 0).tolist() == [0, 0, 1, 2, 5]
    assert C.exp_beta(u, 2).tolist()[-2:] == [math.inf, math.inf]
    assert C.log_beta(torch.zeros(1), 0).item() == -1
    assert C.log_beta(torch.zeros(1), 1).item() == C.log_beta(torch.zeros(1), 2).item() == -math.inf
    for beta in (-1.0, 0.0, 0.5, 1.0, 2.0):
        leaf = torch.tensor([-9.0, 0.0, 0.3, 9.0], requires_grad=True)
        value = C.exp_beta(leaf, beta)
        value[value.isfinite()].sum().backward()
        assert leaf.grad.isfinite().all()
        leaf = torch.tensor([0.0, 1.0], requires_grad=True)
        (grad,) = torch.autograd.grad(C.log_beta(leaf, beta)[1:].sum(), leaf)
        assert grad.isfinite().all()
    assert C.exp_beta(torch.tensor([0.5], dtype=torch.float16), 0.3).dtype == torch.float16


@given(st.floats(-0.5, 3), st.floats(-2, 0.99))
def test_the_derivative_of_the_exponential_is_its_power(u, beta):
    x = torch.tensor(u, dtype=torch.float64, requires_grad=True)
    value = C.exp_beta(x, beta)
    (slope,) = torch.autograd.grad(value, x)
    expected = value.detach() ** beta if value > 0 else torch.zeros_like(value)
    torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1, 0.5), (1, 2), (2, 0), (2, 1.5), (1.5, 0.5), (1.5, 0.1), (3, -1), (2.5, -0.5)]
)
def test_escort_is_the_power_of_the_density(alpha, beta, d):
    """Equation (5.33), against the ratio of powers at points, and that its integral is one on a fine grid."""
    mean = torch.tensor([0.2, -0.1], dtype=torch.float64)[:d]
    density = C.from_cholesky(mean, torch.tensor([[0.5, 0.0], [0.2, 0.4]], dtype=torch.float64)[:d, :d], alpha)
    escort = C.escort(density, beta)
    draws = density.sample((200,))
    difference = escort.log_prob(draws) - beta * density.log_prob(draws)
    torch.testing.assert_close(difference, difference[:1].expand_as(difference), rtol=1e-6, atol=1e-6)
    if alpha > 1:
        for ours, theirs in zip(escort.support, density.support, strict=True):
            torch.testing.assert_close(ours, theirs)
    if alpha < 2.5:
        axis = torch.linspace(-4, 4, 1201, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
        assert abs(escort.pdf(grid).sum() * (axis[1] - axis[0]) ** d - 1) < 2e-3


def test_escort_keeps_the_family():
    density = C.BetaGaussian(torch.zeros(2), torch.eye(2), 1.5)
    assert isinstance(C.escort(density, 0.5), C.BetaGaussian)
    assert C.escort(density, 0.5).alpha == 2
    assert C.escort(density, 1) is density
    assert type(C.escort(density, 0)) is C.PearsonTypeII
    factor = torch.eye(2, dtype=torch.float64, requires_grad=True)
    make = lambda f: C.escort(C.from_cholesky(torch.zeros(2, dtype=torch.float64), f, 2), 0).covariance  # noqa: E731
    assert torch.autograd.gradcheck(make, factor)


def test_gradient_of_the_normaliser_is_the_mean_of_the_escort():
    """The gradient of A_alpha in the canonical parameters is E[phi] under the escort with beta = 2 - alpha."""
    for alpha in (1.3, 1.5, 2, 2.5, 3):
        linear, quadratic = torch.tensor([[0.4], [-1.3]], dtype=torch.float64)
        leaf = linear.requires_grad_(), quadratic.reshape(1, 1).requires_grad_()
        density = C.from_canonical(*leaf, alpha)
        # p(t) = exp_beta(f(t) - A), so that A = f(t) - log_beta(p(t)) at any point inside.
        t = density.mean.detach()
        score = (leaf[0] * t).sum() + (t * t * leaf[1]).sum()
        normaliser = score - C.log_beta(density.log_prob(t).exp(), 2 - alpha)
        slope = torch.autograd.grad(normaliser, leaf)
        escort = C.escort(C.from_canonical(linear.detach(), leaf[1].detach(), alpha), 2 - alpha)
        torch.testing.assert_close(slope[0], escort.mean)
        torch.testing.assert_close(slope[1], escort.covariance + escort.mean**2)


def test_errors():
    with pytest.raises(ValueError, match="u: got a negative entry"):
        C.log_beta(torch.tensor([-1.0]), 0.5)
    with pytest.raises(TypeError, match="beta: got"):
        C.exp_beta(torch.zeros(2), torch.tensor(0.5))
    with pytest.raises(ValueError, match="beta: got 0"):
        C.escort(C.Gaussian(torch.zeros(2), torch.eye(2)), 0)
    with pytest.raises(ValueError, match="beta: got -1"):
        C.escort(C.Paraboloid(torch.zeros(2), torch.eye(2)), -1)
    mixture = C.Mixture(torch.ones(1), C.Gaussian(torch.zeros(1, 2), torch.eye(2)[None]))
    with pytest.raises(TypeError, match="density: got Mixture"):
        C.escort(mixture, 0.5)
