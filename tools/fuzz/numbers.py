"""Maps, attention, bases, mixtures, distances and losses in every dtype, against the slow versions in tests/reference.

A case draws sizes, scores, masks and options; scores may be huge, tied or almost tied. Truth is computed in float64
from the very numbers that the library gets. What a dtype may err by is stated in EPS: some units of its last place.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
from reference import attend as slow_attend
from reference import continuous as slow_continuous
from reference import maps as slow_maps
from reference import transport as slow_transport
from torch import Tensor

import regard
from regard import continuous, wasserstein

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EPS = {torch.float64: 1e-7, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class Wrong(AssertionError):
    """A result that differs from the truth, or is not finite."""


def close(what: str, found: Tensor, truth: Tensor, allowed: float) -> None:
    """Raise `Wrong` unless all entries are finite and within `allowed` of the truth, relative to its largest entry."""
    found, truth = found.detach().double(), truth.detach().double()
    if found.shape != truth.shape:
        raise Wrong(f"{what}: shape {tuple(found.shape)}, and {tuple(truth.shape)} was expected")
    if not bool(torch.isfinite(found).all()):
        raise Wrong(f"{what}: not finite")
    if found.numel():
        scale = max(1.0, float(truth.abs().max()))
        error = float((found - truth).abs().max()) / scale
        if error > allowed:
            raise Wrong(f"{what}: off by {error:.2e}, allowed {allowed:.2e}")


def tensor(draw: random.Random, *shape: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    """Normal numbers of one scale, now and then with ties, in a layout that is not always contiguous."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(draw.getrandbits(32)), dtype=torch.float64)
    if draw.random() < 0.2:
        numbers = numbers.round()
    numbers = (scale * numbers).to(dtype)
    if numbers.dim() > 1 and draw.random() < 0.2:
        numbers = numbers.mT.contiguous().mT
    return numbers


def scores(draw: random.Random, *shape: int, dtype: torch.dtype) -> Tensor:
    """Scores of a random scale, sometimes far from zero, sometimes one far ahead of the others."""
    s = tensor(draw, *shape, dtype=dtype, scale=10.0 ** draw.uniform(-4, 2))
    if draw.random() < 0.1:
        s = s + draw.choice([-1e3, 1e3])
    if draw.random() < 0.1:
        s[..., draw.randrange(shape[-1])] += 1e3
    return s


def mask_or_none(draw: random.Random, *shape: int) -> Tensor | None:
    """None, or a mask that may leave rows empty."""
    if draw.random() < 0.5:
        return None
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    return torch.rand(*shape, generator=generator) < draw.choice([0.05, 0.5, 0.9])


def gradient(result: Tensor, weights: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The gradients of <weights, result>."""
    return list(torch.autograd.grad((result * weights.to(result.dtype)).sum(), inputs))


def maps(draw: random.Random) -> str:
    """softmax, sparsemax, entmax, normmax, budget_sparsemax, mean: values, masks, gradients."""
    rows, n = draw.choice([1, 2, 7]), draw.choice([1, 2, 3, 8, 33, 64, 65, 300, 1200])
    dtype = draw.choice(DTYPES)
    s, mask = scores(draw, rows, n, dtype=dtype), mask_or_none(draw, rows, n)
    name = draw.choice(["softmax", "sparsemax", "entmax", "normmax", "budget_sparsemax", "mean"])
    exact, options = s.double(), {}
    if name == "entmax":
        options = {"alpha": draw.choice([0.5, 0.9, 1.0, 1.1, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0])}
        if options["alpha"] < 1:
            mask = None
    elif name == "normmax":
        mask, options = None, {"alpha": draw.choice([1.5, 2.0, 3.0])}
    elif name == "budget_sparsemax":
        mask, options = None, {"budget": draw.choice([1, min(2.5, n), n / 2 if n > 2 else 1])}
    function = partial(getattr(regard, name), **options)
    slow = partial(getattr(slow_maps, name), **options)
    what = f"{name} {options} {rows} x {n} {dtype} mask {mask is not None}"
    given = s.clone().requires_grad_()
    p = function(given) if mask is None else function(given, mask=mask)
    truth = slow(exact) if mask is None else slow(exact, mask=mask)
    # Past alpha = 2 the weights are like a root at the edge of the support: rounding shows as its root.
    allowed = EPS[dtype] * (30 if options.get("alpha", 1) > 2 else 1)
    if name == "mean":
        allowed *= 4
    close(what, p, truth, allowed)
    if p.dtype != dtype:
        raise Wrong(f"{what}: dtype {p.dtype}")
    (slope,) = gradient(p, tensor(draw, rows, n, dtype=dtype), given)
    if not bool(torch.isfinite(slope).all()):
        raise Wrong(f"{what}: gradient not finite")
    if mask is not None and bool((p[~mask.expand_as(p)] != 0).any() | (slope[~mask.expand_as(p)] != 0).any()):
        raise Wrong(f"{what}: masked entries take part")
    if dtype == torch.float64 and name in ("softmax", "sparsemax", "entmax") and 1 <= options.get("alpha", 1) <= 2:
        weights = tensor(draw, rows, n)
        apart = exact.clone().requires_grad_()
        slow_slope = gradient(slow(apart) if mask is None else slow(apart, mask=mask), weights, apart)[0]
        again = exact.clone().requires_grad_()
        fast_slope = gradient(function(again) if mask is None else function(again, mask=mask), weights, again)[0]
        if name == "softmax" or bool(((truth > 1e-5) | (truth == 0)).all()):  # away from the edge of the support
            close(f"{what}: gradient", fast_slope, slow_slope, 1e-6)
    return name


def sinkhorn(draw: random.Random) -> str:
    """Sinkhorn's plan and marginals, against the loop in the log domain."""
    b, k, dtype = draw.randint(1, 12), draw.randint(1, 9), draw.choice(DTYPES)
    s = tensor(draw, b, k, dtype=dtype, scale=draw.choice([0.1, 1.0, 10.0]))
    eps, iterations = draw.choice([0.05, 0.3, 1.0]), draw.choice([1, 3, 50])
    found = regard.sinkhorn(s, eps=eps, iterations=iterations)
    even = [torch.full((n,), 1 / n, dtype=torch.float64) for n in (b, k)]
    truth = b * slow_transport.log_plan(s.double(), eps, iterations, *even)
    if not bool(torch.isfinite(truth).all()):
        return "sinkhorn"
    close(f"sinkhorn {b} x {k} eps {eps} {iterations} {dtype}", found.weights, truth, 10 * EPS[dtype])
    return "sinkhorn"


def attend(draw: random.Random) -> str:
    """`attend` with every affinity and map that has a slow twin: whichever algorithm is chosen."""
    dtype = draw.choice(DTYPES)
    batch, queries, keys = draw.choice([(), (1,), (2,), (2, 3)]), draw.choice([1, 5, 64]), draw.choice([1, 7, 64, 200])
    width, values = draw.choice([1, 4, 16]), draw.choice([1, 3, 8])
    scale = draw.choice([0.3, 1.0, 3.0])
    q, k = (tensor(draw, *batch, n, width, dtype=dtype, scale=scale) for n in (queries, keys))
    v = tensor(draw, *batch, keys, values, dtype=dtype)
    made = {
        "Dot": lambda: regard.Dot(draw.choice([None, 1.0, -0.5, 0.0])),
        "Bilinear": lambda: regard.Bilinear(tensor(draw, width, width, dtype=dtype, scale=0.3)),
        "Concatenation": lambda: regard.Concatenation(*(tensor(draw, width, dtype=dtype) for _ in range(2))),
        "Additive": lambda: regard.Additive(tensor(draw, width, dtype=dtype)),
    }
    name = draw.choice(list(made))
    affinity = made[name]()
    exact = {
        "Dot": lambda: affinity,
        "Bilinear": lambda: regard.Bilinear(affinity.weight.double()),
        "Concatenation": lambda: regard.Concatenation(affinity.w_q.double(), affinity.w_k.double()),
        "Additive": lambda: regard.Additive(affinity.v.double()),
    }[name]()
    kinds = {"softmax": {}, "sparsemax": {}, "entmax": {"alpha": draw.choice([1.3, 1.5, 2.0])}, "mean": {}}
    kind = draw.choice(list(kinds))
    mask = mask_or_none(draw, *batch, queries, keys)
    what = f"attend {name} {kind} {kinds[kind]} {batch} {queries} {keys} {width} {dtype} mask {mask is not None}"
    fast, slow = (partial(getattr(module, kind), **kinds[kind]) for module in (regard, slow_maps))
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    found = regard.attend(*tensors, affinity, fast, mask=mask)
    truth = slow_attend.attend(q.double(), k.double(), v.double(), exact, slow, mask)
    # Scores are rounded before the map sees them: their size counts.
    size = max(1.0, float(slow_attend.scores(exact, q.double(), k.double()).abs().max()))
    close(what, found, truth, 4 * EPS[dtype] * size)
    for gradient_of, slope in zip(
        "qkv", gradient(found, tensor(draw, *found.shape, dtype=dtype), *tensors), strict=True
    ):
        if not bool(torch.isfinite(slope).all()):
            raise Wrong(f"{what}: gradient in {gradient_of} not finite")
    return f"attend {name}"


def losses(draw: random.Random) -> str:
    """Fenchel-Young losses against Omega*(s) + Omega(y) - <s, y> in float64."""
    rows, n, dtype = draw.choice([1, 4]), draw.choice([2, 5, 40]), draw.choice(DTYPES)
    s = scores(draw, rows, n, dtype=dtype)
    alpha = draw.choice([1.0, 1.0 + 1e-9, 1.01, 1.3, 1.5, 2.0, 3.0])
    target = torch.randint(n, (rows,), generator=torch.Generator().manual_seed(draw.getrandbits(32)))
    given = s.clone().requires_grad_()
    found = regard.entmax_loss(given, target, alpha, reduction="none")
    exact = s.double()
    p = slow_maps.entmax(exact, 1.0 if abs(alpha - 1) < 1e-6 else alpha)
    entropy = slow_maps.tsallis(p, 1.0 if abs(alpha - 1) < 1e-6 else alpha)
    centred = exact - exact.gather(-1, target[:, None])
    truth = (p * centred).sum(-1) + entropy
    what = f"entmax_loss alpha {alpha} {rows} x {n} {dtype}"
    close(what, found, truth, EPS[dtype] * 10)
    if bool((found < 0).any()):
        raise Wrong(f"{what}: negative")
    (slope,) = gradient(found, torch.ones_like(found), given)
    close(f"{what}: gradient", slope, p - torch.nn.functional.one_hot(target, n), EPS[dtype] * (30 if alpha > 2 else 1))
    return "entmax_loss"


def distances(draw: random.Random) -> str:
    """Wasserstein distances against assignments, quantiles and matrix roots."""
    dtype = draw.choice(DTYPES[:2])
    kind = draw.choice(["line", "gaussian", "bures", "exact"])
    scale = draw.choice([1e-2, 1.0, 1e2])
    if kind in ("line", "exact"):
        n, p = draw.randint(1, 6), draw.choice([1, 2])
        d = 1 if kind == "line" else draw.randint(1, 3)
        x, y = (tensor(draw, n, d, dtype=dtype, scale=scale) for _ in range(2))
        truth = slow_transport.assignment_wasserstein(x.double(), y.double(), p)
        if kind == "line":
            found = wasserstein.wasserstein_1d(x[:, 0], y[:, 0], p=p)
        else:
            found = wasserstein.exact_wasserstein(x, y, p=p)
        found_ = found if isinstance(found, Tensor) else torch.tensor(found)
        close(f"{kind} {n} {d} p {p} {dtype}", found_ / scale, torch.tensor(truth / scale), 10 * EPS[dtype])
        return kind
    d = draw.randint(1, 4)
    m1, m2 = (tensor(draw, d, dtype=dtype, scale=scale) for _ in range(2))
    if kind == "gaussian":
        s1, s2 = (tensor(draw, d, dtype=dtype, scale=scale).abs() for _ in range(2))
        found = wasserstein.gaussian_w2(m1, s1, m2, s2)
        truth = float(((m1 - m2).double() ** 2).sum() + ((s1 - s2).double() ** 2).sum()) ** 0.5
    else:
        a, b = (tensor(draw, d, d, dtype=torch.float64, scale=scale) for _ in range(2))
        c1, c2 = ((x @ x.mT + 1e-3 * scale**2 * torch.eye(d, dtype=torch.float64)).to(dtype) for x in (a, b))
        found = wasserstein.bures_w2(m1, c1, m2, c2)
        truth = max(0.0, slow_transport.bures_squared(m1.double(), c1.double(), m2.double(), c2.double())) ** 0.5
    close(f"{kind} {d} {dtype} scale {scale}", found / scale, torch.tensor(truth / scale), 30 * EPS[dtype])
    return kind


def spread(draw: random.Random, d: int) -> Tensor:
    """A covariance matrix of random axes, down to 1:30, and angle."""
    size = 10.0 ** draw.uniform(-2, -0.7)
    axes = torch.tensor([size, size / 10 ** draw.uniform(0, 1.5)][:d], dtype=torch.float64)
    turn = torch.linalg.qr(tensor(draw, d, d) + 1e-3 * torch.eye(d, dtype=torch.float64)).Q
    return turn @ torch.diag(axes**2) @ turn.mT


def bases(draw: random.Random) -> str:
    """Expectations of basis functions under densities, against adaptive integration."""
    d = draw.choice([1, 2])
    mean = torch.tensor([draw.random() for _ in range(d)], dtype=torch.float64)
    covariance = spread(draw, d)
    centre, size = (
        torch.tensor([[draw.random() for _ in range(d)]], dtype=torch.float64),
        10.0 ** draw.uniform(-1.3, -0.5),
    )
    basis = continuous.GaussianBasis(centre, size**2 * torch.eye(d, dtype=torch.float64)[None])
    alpha = draw.choice([1, 2])
    density: Any
    if alpha == 1:
        density = continuous.Gaussian(mean, covariance)
    else:
        density = continuous.Paraboloid(mean, covariance)
    found = density.expect(basis)
    covariances = (size**2 * torch.eye(d, dtype=torch.float64)[None]).numpy()

    def psi(t: Any, _: Any) -> Any:
        return slow_continuous.normal_pdf(t, centre.numpy(), covariances)

    if alpha == 1:
        truth = slow_continuous.gaussian_expectation(psi, mean, covariance)
    else:
        truth = slow_continuous.ball_expectation(psi, mean, covariance, 1.0)
    peak = float((2 * torch.pi * size**2) ** (-d / 2))
    close(f"basis d {d} alpha {alpha}", found / peak, torch.as_tensor(truth) / peak, 1e-5)
    if alpha == 1 or d == 1:
        single = type(density)(mean.float(), covariance.float()).expect(
            continuous.GaussianBasis(centre.float(), (size**2 * torch.eye(d))[None])
        )
        close(f"basis d {d} alpha {alpha} float32", single / peak, torch.as_tensor(truth) / peak, 1e-3)
    return f"basis alpha {alpha}"


def mixtures(draw: random.Random) -> str:
    """`match_moments` against the cells, `fit_mixture` by its promises: a distribution, finite, never less likely."""
    dtype = draw.choice(DTYPES[:2])
    h, w = draw.choice([(3, 3), (5, 4), (7, 7), (14, 14)])
    where = continuous.grid(h, w)
    weights = torch.softmax(scores(draw, h * w, dtype=torch.float64).clamp(-1e3, 1e3), -1).to(dtype)
    found = continuous.match_moments(weights, where, draw.choice([1, 2]))
    sides = torch.tensor([1 / w, 1 / h], dtype=torch.float64)
    mean, covariance = slow_continuous.moments(weights, where.points, sides)
    close(f"moments {h} x {w} {dtype}: mean", found.mean, mean, EPS[dtype])
    close(f"moments {h} x {w} {dtype}: covariance", found.covariance, covariance, EPS[dtype])
    given = weights.clone().requires_grad_()
    components = draw.randint(1, 4)
    before, after = (continuous.fit_mixture(given, where, components, iterations=i) for i in (1, 12))
    for mixture in (before, after):
        mixing = mixture.mixing.detach()
        if not bool(torch.isfinite(mixing).all()) or abs(float(mixing.sum()) - 1) > 1e-3:
            raise Wrong(f"mixture {h} x {w} of {components} {dtype}: mixing {mixing.tolist()}")
    less, more = (float(continuous.log_likelihood(mixture, weights, where).detach()) for mixture in (before, after))
    if more < less - 1e-3 * max(1.0, abs(less)):
        raise Wrong(f"mixture {h} x {w} of {components} {dtype}: log likelihood {less} became {more}")
    (slope,) = torch.autograd.grad(after.mixing[..., 0].sum() + after.mixing.square().sum(), given)
    if not bool(torch.isfinite(slope).all()):
        raise Wrong(f"mixture {h} x {w} of {components} {dtype}: gradient not finite")
    return f"mixture of {components}"
