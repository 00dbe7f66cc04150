import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import continuous as reference
from sklearn.mixture import GaussianMixture

from regard import continuous as C
from regard.continuous.members import batch_part

CELLS = C.grid(6, 7)


def noise(*shape, scale=2.0):
    return torch.softmax(scale * torch.randn(*shape, len(CELLS), dtype=torch.float64), -1)


def two_blobs(sides=(14, 14)):
    w = torch.zeros(*sides, dtype=torch.float64)
    w[2:5, 2:5] = 1
    w[9:12, 8:12] = 2
    return (w / w.sum()).flatten()


@pytest.mark.parametrize("components", [1, 2, 3])
def test_em_is_the_loop_it_should_be(components):
    """Equations (5.23) to (5.26), against loops over components and locations."""
    w = noise()
    within = torch.diag(CELLS.sides**2 / 12)
    fits = [C.fit_mixture(w, CELLS, components, n) for n in range(4)]
    for before, after in pairwise(fits):
        mass, means, covariances, loglik = reference.em_step(
            w, CELLS.points, within, before.mixing, before.parts.mean, before.parts.covariance
        )
        torch.testing.assert_close(after.mixing, mass)
        torch.testing.assert_close(after.parts.mean, means)
        torch.testing.assert_close(after.parts.covariance, covariances)
        torch.testing.assert_close(C.log_likelihood(before, w, CELLS), loglik)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_equal_weights_are_scikit_learn(d):
    points = torch.cat([torch.randn(60, d, dtype=torch.float64), 0.5 * torch.randn(40, d, dtype=torch.float64) + 2])
    start = C.Mixture(
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        C.Gaussian(points[[3, 70]], torch.eye(d, dtype=torch.float64).expand(2, d, d)),
    )
    ours = C.fit_mixture(torch.ones(100, dtype=torch.float64), points, 2, 12, init=start)
    theirs = GaussianMixture(
        2,
        reg_covar=0,
        max_iter=12,
        tol=0,
        weights_init=[0.5, 0.5],
        means_init=points[[3, 70]].numpy(),
        precisions_init=torch.eye(d).expand(2, d, d).numpy(),
    )
    with pytest.warns(Warning, match="did not converge"):
        theirs.fit(points.numpy())
    for a, b in (
        (ours.mixing, theirs.weights_),
        (ours.parts.mean, theirs.means_),
        (ours.parts.covariance, theirs.covariances_),
    ):
        torch.testing.assert_close(a, torch.from_numpy(b), atol=1e-6, rtol=0)
    assert abs(C.log_likelihood(ours, torch.ones(100).double(), points).item() - theirs.score(points.numpy())) < 1e-6


@pytest.mark.parametrize("init", ["regions", "random"])
@pytest.mark.parametrize("components", [2, 4, 5])
def test_likelihood_never_decreases(init, components):
    w = torch.cat([noise(20, scale=s) for s in (0.5, 2.0, 6.0)])
    w[0] = 0
    w[0, 10] = 1
    w[1] = 1 / len(CELLS)
    before = None
    for n in range(8):
        generator = torch.Generator().manual_seed(0)
        mix = C.fit_mixture(w, CELLS, components, n, init, generator=generator)
        now = C.log_likelihood(mix, w, CELLS)
        if before is not None:
            assert (now >= before - 1e-10).all()
        before = now


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_likelihood_never_decreases_whatever_the_weights(seed, components):
    generator = torch.Generator().manual_seed(seed)
    w = torch.rand(len(CELLS), generator=generator, dtype=torch.float64) ** 8
    w = w * (torch.rand(len(CELLS), generator=generator) < 0.3) + 1e-9
    scores = [C.log_likelihood(C.fit_mixture(w, CELLS, components, n), w, CELLS) for n in (0, 1, 2, 5)]
    assert all(b >= a - 1e-10 for a, b in pairwise(scores))


def test_gradcheck_through_the_iterations():
    cells = C.grid(3, 4)
    basis = C.GaussianBasis.on_grid(2, 2, variance=0.05)
    w = torch.rand(2, 12, dtype=torch.float64, requires_grad=True)
    for alpha in (1, 2):
        assert torch.autograd.gradcheck(
            lambda w, alpha=alpha: C.fit_mixture(w, cells, 2, 3, alpha=alpha).expect(basis), w
        )
    assert torch.autograd.gradcheck(lambda w: C.fit_mixture(w, cells, 2, 2).mixing, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("components", [2, 4, 7])
def test_components_may_die(dtype, components):
    """One-hot, uniform, a corner, a row: finite parameters, and gradients that fade with the component."""
    w = torch.stack([w.to(dtype) for w in reference.cases().values()])
    corner = torch.zeros_like(w[:1])
    corner[0, 0] = 1
    w = torch.cat([w, corner]).requires_grad_()
    basis = C.GaussianBasis.on_grid(4, 4, variance=0.01)
    for iterations in (0, 5, 40):
        mix = C.fit_mixture(w, C.grid(14, 14), components, iterations)
        assert all(x.isfinite().all() for x in (mix.mixing, mix.parts.mean, mix.parts.covariance))
        torch.testing.assert_close(mix.mixing.sum(-1), torch.ones(len(w), dtype=mix.mixing.dtype))
        r = mix.expect(basis)
        (gradient,) = torch.autograd.grad(r.sum(), w)
        assert r.isfinite().all()
        assert gradient.isfinite().all()
        # What reaches the scores behind a softmax: a weight of 1e-40 may decide where a dying component goes.
        p, g = w.detach().double(), gradient.double()
        assert (p * (g - (p * g).sum(-1, keepdim=True))).abs().max() < 50


def test_regions():
    """Halves one above the other, quadrants, and the mass in each."""
    w = torch.rand(4, 4, dtype=torch.float64)
    w = w / w.sum()
    halves = C.fit_mixture(w.flatten(), C.grid(4, 4), 2, 0)
    torch.testing.assert_close(halves.mixing, torch.stack([w[:2].sum(), w[2:].sum()]), atol=1e-5, rtol=0)
    upper = C.match_moments(torch.cat([w[:2], torch.zeros(2, 4, dtype=torch.float64)]).flatten(), C.grid(4, 4))
    torch.testing.assert_close(halves.parts.mean[0], upper.mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(halves.parts.covariance[0], upper.covariance, atol=1e-5, rtol=0)
    quadrants = C.fit_mixture(w.flatten(), C.grid(4, 4), 4, 0)
    mass = w.reshape(2, 2, 2, 2).sum((1, 3)).flatten()
    torch.testing.assert_close(quadrants.mixing, mass, atol=1e-5, rtol=0)
    thirds = C.fit_mixture(torch.ones(6), C.line(6), 3, 0)
    torch.testing.assert_close(thirds.parts.mean.flatten(), torch.tensor([1.0, 3.0, 5.0]) / 6)


def test_two_places_are_found():
    mix = C.fit_mixture(two_blobs(), C.grid(14, 14), 2, 20)
    torch.testing.assert_close(mix.mixing, torch.tensor([9, 24], dtype=torch.float64) / 33, atol=1e-6, rtol=0)
    expected = torch.tensor([[3.5, 3.5], [10.0, 10.5]], dtype=torch.float64) / 14
    torch.testing.assert_close(mix.parts.mean, expected, atol=1e-6, rtol=0)


def test_the_best_restart_wins():
    w = noise(5, scale=4.0)
    one = [C.fit_mixture(w, CELLS, 3, 5, "random", generator=torch.Generator().manual_seed(s)) for s in range(2)]
    many = C.fit_mixture(w, CELLS, 3, 5, "random", restarts=8, generator=torch.Generator().manual_seed(0))
    best = C.log_likelihood(many, w, CELLS)
    assert (best >= C.log_likelihood(one[0], w, CELLS) - 1e-9).sum() >= 4
    assert best.mean() > C.log_likelihood(one[1], w, CELLS).mean()


def test_selection_finds_the_number_of_blobs():
    w = torch.zeros(3, 14, 14, dtype=torch.float64)
    w[:, 2:4, 2:4] = 1
    w[1:, 10:12, 9:11] = 1
    w[2, 3:5, 11:13] = 1
    generator = torch.Generator().manual_seed(0)
    mix = C.select_mixture(w.flatten(1), C.grid(14, 14), generator=generator, restarts=6)
    assert mix.components.tolist() == [1, 2, 3]
    assert mix.mixing.shape == (3, 5)
    torch.testing.assert_close(mix.mixing.sum(-1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("criterion", ["components", "parameters", "aic", "bic"])
def test_selection_minimises_its_criterion(criterion):
    """Equation (5.27), against fits of every K one by one from the same starts."""
    w = noise(6, scale=3.0)
    penalty = {"components": 0.1, "parameters": 0.02}.get(criterion, 0.1)
    mix = C.select_mixture(
        w, CELLS, 3, 1, penalty, criterion=criterion, iterations=10, generator=torch.Generator().manual_seed(5)
    )
    uniform = torch.rand(3, 6, len(CELLS), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    seeds = (-(-uniform.log()).log() + w.log()).topk(3, -1).indices
    covariance = C.match_moments(w, CELLS).covariance
    scores = []
    for k in (1, 2, 3):
        start = C.Mixture(
            torch.full((6, k), 1 / k, dtype=torch.float64),
            C.Gaussian(CELLS.points[seeds[k - 1][:, :k]], covariance[:, None].expand(6, k, 2, 2)),
        )
        loglik = C.log_likelihood(C.fit_mixture(w, CELLS, k, 10, start), w, CELLS)
        n = (1 / w.square().sum(-1)).clamp_min(math.e)
        free = 6 * k - 1
        price = {
            "components": penalty * k,
            "parameters": penalty * free,
            "aic": 2 * free / n,
            "bic": free * n.log() / n,
        }[criterion]
        scores.append(-2 * loglik + price)
    assert mix.components.tolist() == (torch.stack(scores).argmin(0) + 1).tolist()


def test_aic_and_bic_with_equal_weights_are_the_textbooks():
    points = torch.randn(80, 2, dtype=torch.float64)
    theirs = GaussianMixture(1, reg_covar=0).fit(points.numpy())
    w = torch.full((80,), 1 / 80, dtype=torch.float64)
    loglik = C.log_likelihood(C.fit_mixture(w, points, 1, 1), w, points)
    assert abs(80 * (-2 * loglik + 5 * 2 / 80).item() - theirs.aic(points.numpy())) < 1e-6
    assert abs(80 * (-2 * loglik + 5 * math.log(80) / 80).item() - theirs.bic(points.numpy())) < 1e-6


def test_selection_carries_a_gradient_and_survives_every_case():
    w = torch.stack([w.float() for w in reference.cases().values()]).requires_grad_()
    mix = C.select_mixture(w, C.grid(14, 14), generator=torch.Generator().manual_seed(0))
    assert ((mix.components >= 1) & (mix.components <= 5)).all()
    assert mix.components[list(reference.cases()).index("one-hot")] == 1
    (gradient,) = torch.autograd.grad(mix.expect(C.GaussianBasis.on_grid(4, 4)).sum(), w)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_sparse_mixing_lets_the_number_of_modes_vary():
    w = torch.stack([two_blobs(), torch.softmax(torch.zeros(196, dtype=torch.float64), 0)])
    w[0, 0] = 1e-4
    mix = C.fit_mixture(w, C.grid(14, 14), 4, 10, alpha=2, mixing="sparsemax")
    assert isinstance(mix.parts, C.Paraboloid)
    assert mix.components[0] < mix.components[1] == 4
    torch.testing.assert_close(mix.mixing.sum(-1), torch.ones(2, dtype=torch.float64))
    t = C.grid(40, 40).points * 3 - 1
    assert abs(mix.pdf(t).sum(-1) * 9 / 1600 - 1).max() < 0.02


@pytest.mark.parametrize("alpha", [1, 2])
def test_a_mixture_is_the_sum_of_its_parts(alpha):
    """Equation (5.22): pdf, moments, expectation, entropy and samples."""
    mix = C.fit_mixture(two_blobs(), C.grid(14, 14), 2, 10, alpha=alpha)
    t, cell = C.grid(300, 300).points * 2 - 0.5, 4 / 300**2
    p = mix.pdf(t)
    each = mix.parts.pdf(t)
    torch.testing.assert_close(p, (mix.mixing[:, None] * each).sum(0))
    assert abs((p * cell).sum() - 1) < 2e-3
    torch.testing.assert_close(p * cell @ t, mix.mean, atol=2e-3, rtol=0)
    offset = t - mix.mean
    torch.testing.assert_close((p * cell * offset.mT) @ offset, mix.covariance, atol=2e-3, rtol=0)
    basis = C.GaussianBasis.on_grid(3, 3, variance=0.01)
    torch.testing.assert_close(mix.expect(basis), p * cell @ basis(t), atol=2e-3, rtol=2e-3)
    entropy = -(p * p.clamp_min(1e-300).log() * cell).sum()
    assert abs(mix.entropy() - entropy) < 5e-3
    draws = mix.sample((20_000,))
    torch.testing.assert_close(draws.mean(0), mix.mean, atol=0.01, rtol=0)
    assert mix.log_prob(draws).isfinite().all()


def test_entropy_of_equal_parts_is_that_of_one():
    for alpha in (1, 2, 1.5):
        one = C.match_moments(torch.rand(3, 42, dtype=torch.float64), CELLS, alpha)
        both = C.Mixture(
            torch.tensor([0.3, 0.7], dtype=torch.float64).expand(3, 2),
            C.from_cholesky(
                one.mean[:, None].expand(3, 2, 2),
                torch.linalg.cholesky(one.covariance)[:, None].expand(3, 2, 2, 2),
                alpha,
            ),
        )
        torch.testing.assert_close(both.entropy(), one.entropy(), atol=2e-3, rtol=0)


def test_log_prob_outside_every_part_has_a_gradient_of_zero():
    mixing = torch.tensor([1.0, 0.0], requires_grad=True)
    mean = torch.zeros(2, 2, requires_grad=True)
    mix = C.Mixture(mixing, C.Paraboloid(mean, torch.eye(2).expand(2, 2, 2)))
    assert mix.log_prob(torch.tensor([9.0, 9.0])) == -math.inf
    mix.pdf(torch.tensor([[9.0, 9.0], [0.1, 0.0]])).sum().backward()
    assert mixing.grad.isfinite().all()
    assert mean.grad.isfinite().all()


def test_mask_is_the_same_as_leaving_out():
    w = torch.rand(3, 9, dtype=torch.float64)
    cells = C.line(9)
    mask = torch.arange(9) < 6
    short = C.Locations(cells.points[:6], cells.sides)
    start = C.fit_mixture(w[:, :6], short, 2, 0)
    a = C.fit_mixture(w, cells, 2, 4, start, mask=mask)
    b = C.fit_mixture(w[:, :6], short, 2, 4, start)
    torch.testing.assert_close(a.parts.mean, b.parts.mean)
    torch.testing.assert_close(a.mixing, b.mixing)


def test_errors():
    w = torch.rand(2, 42)
    with pytest.raises(ValueError, match="components: got 0"):
        C.fit_mixture(w, CELLS, 0)
    with pytest.raises(ValueError, match="components: got 50"):
        C.fit_mixture(w, CELLS, 50)
    with pytest.raises(ValueError, match="init: got 'kmeans'"):
        C.fit_mixture(w, CELLS, 2, init="kmeans")
    with pytest.raises(ValueError, match="init: got a mixture with means"):
        C.fit_mixture(w, CELLS, 2, init=C.fit_mixture(w[0], CELLS, 2))
    with pytest.raises(ValueError, match="restarts: got 3"):
        C.fit_mixture(w, CELLS, 2, restarts=3)
    with pytest.raises(ValueError, match="mixing: got 'softmax'"):
        C.fit_mixture(w, CELLS, 2, mixing="softmax")
    with pytest.raises(ValueError, match="criterion: got 'mdl'"):
        C.select_mixture(w, CELLS, criterion="mdl")
    with pytest.raises(ValueError, match=r"mixing: got shape \(3,\)"):
        C.Mixture(torch.ones(3) / 3, C.Gaussian(torch.zeros(2, 1), torch.ones(2, 1, 1)))


@pytest.mark.parametrize("family", [C.Gaussian, C.Paraboloid])
def test_on_a_grid_as_at_its_points(family):
    """Of rows and columns that are no square, in float64, for a batch, its parts, and a component without weight."""
    torch.manual_seed(0)
    root = torch.randn(3, 2, 2, 2, dtype=torch.float64) / 5
    parts = family(torch.rand(3, 2, 2, dtype=torch.float64), root @ root.mT + 0.01 * torch.eye(2))
    mixing = torch.tensor([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    points = torch.cartesian_prod(*((torch.arange(n, dtype=torch.float64) + 0.5) / n for n in (5, 7))).flip(-1)
    for density in (parts, C.Mixture(mixing, parts)):
        grid = density.pdf_on_grid(5, 7)
        torch.testing.assert_close(grid, density.pdf(points).unflatten(-1, (5, 7)))
    torch.testing.assert_close(batch_part(density, slice(1, 3)).pdf_on_grid(5, 7), grid[1:])


@pytest.mark.parametrize("shift", [(1e4, -1e4), (0.0, 5e3)])
@pytest.mark.parametrize("how", ["regions", "random", "mixture", "select", "moments"])
def test_far_from_the_origin_nothing_changes_but_the_means(how, shift):
    """Locations in float32 at multiples of 1/16, which a shift by whole numbers does not round."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(3, 64, generator=generator).square()
    near = C.grid(8, 8)
    near = C.Locations(near.points.float(), near.sides.float(), near.shape)
    move = torch.tensor(shift)
    far = C.Locations(near.points + move, near.sides, near.shape)
    assert torch.equal(far.points.double() - move.double(), near.points.double())
    started = C.fit_mixture(weights.double(), near, 3, 2)

    def fit(where, by):
        leaf = weights.clone().requires_grad_()
        if how == "moments":
            found = C.match_moments(leaf, where)
            parts, share = found, torch.ones(3, 1)
        else:
            draw = torch.Generator().manual_seed(1)
            if how == "select":
                found = C.select_mixture(leaf, where, 3, generator=draw)
            elif how == "mixture":
                start = C.Mixture(
                    started.mixing, C.Gaussian(started.parts.mean + by.double(), started.parts.covariance)
                )
                found = C.fit_mixture(leaf, where, 3, 8, start)
            else:
                found = C.fit_mixture(leaf, where, 3, 8, how, generator=draw)
            parts, share = found.parts, found.mixing
        (gradient,) = torch.autograd.grad((parts.covariance * parts.covariance).sum() + share[..., 0].sum(), leaf)
        return parts, share, gradient

    (parts, share, gradient), (parts_far, share_far, gradient_far) = fit(near, 0 * move), fit(far, move)
    torch.testing.assert_close(parts_far.covariance, parts.covariance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(share_far, share, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient_far, gradient, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(parts_far.mean - move, parts.mean, rtol=0, atol=2e-3)  # the last digit of 1e4 in float32
    if how != "moments":
        wide = [
            C.Mixture(share.double(), C.Gaussian(m, parts.covariance.double()))
            for m in (parts.mean.double(), parts.mean.double() + move.double())
        ]
        near_far = [C.log_likelihood(m, weights, where) for m, where in zip(wide, (near, far), strict=True)]
        torch.testing.assert_close(*near_far, rtol=1e-9, atol=0)
