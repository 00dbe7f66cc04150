"""Table 4.1 of the thesis, with errors and times: methods to integrate a truncated paraboloid times a Gaussian.

One integral E_p[N(t; m, S)] at a time for the first four, as in the thesis; the sum and the chords compute 100 at once.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from scipy.integrate import dblquad, quad

from benchmarks.harness import Row, report
from regard import continuous as C

PROBLEMS = 20


class Problem:
    """A density and a basis function drawn at random, and the quantities of Appendix A.2."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Means in the unit square, standard deviations between 0.05 and 0.3 for p, 0.03 to 0.1 for the function."""
        self.mean, self.centre = rng.uniform(0.3, 0.7, 2), rng.uniform(0.3, 0.7, 2)
        factor = np.tril(rng.uniform(-0.1, 0.1, (2, 2)), -1) + np.diag(rng.uniform(0.05, 0.3, 2))
        self.var, self.s = factor @ factor.T, np.diag(rng.uniform(0.03, 0.1, 2) ** 2)
        sigma = 9 * math.pi * math.sqrt(np.linalg.det(self.var)) * self.var
        self.lam = -1 / math.sqrt(math.pi * math.sqrt(np.linalg.det(sigma)))
        self.inverse, self.s_inverse = np.linalg.inv(sigma), np.linalg.inv(self.s)
        root = np.linalg.cholesky(-2 * self.lam * sigma)
        self.root = root
        back = np.linalg.inv(root)
        self.mu, self.cov = back @ (self.centre - self.mean), back @ self.s @ back.T
        self.precision = np.linalg.inv(self.cov)
        self.peak = 1 / (2 * math.pi * math.sqrt(np.linalg.det(self.cov)))

    def plane(self, x: float, y: float) -> float:
        """The integrand in the plane."""
        t = np.array([x, y]) - self.mean
        p = max(-self.lam - 0.5 * t @ self.inverse @ t, 0)
        o = np.array([x, y]) - self.centre
        return p * math.exp(-0.5 * o @ self.s_inverse @ o) / (2 * math.pi * math.sqrt(np.linalg.det(self.s)))

    def disc(self, x: float, y: float) -> float:
        """The integrand on the unit disc."""
        o = np.array([x, y]) - self.mu
        return -self.lam * max(1 - x * x - y * y, 0) * self.peak * math.exp(-0.5 * o @ self.precision @ o)

    def ray(self, angle: float | np.ndarray) -> float | np.ndarray:
        """-lambda s(angle) F(angle), equations (A.17) and (A.22): the integral along a ray in closed form."""
        from scipy.special import erf

        a = np.stack([np.cos(angle), np.sin(angle)], -1)
        variance = 1 / np.einsum("...i,ij,...j->...", a, self.precision, a)
        sd, r0 = np.sqrt(variance), variance * (a @ self.precision @ self.mu)
        level = self.mu @ self.precision @ self.mu - r0**2 / variance
        scale = self.peak * math.sqrt(2 * math.pi) * sd * np.exp(-0.5 * level)
        normal = lambda x: np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)  # noqa: E731
        mass = erf((1 - r0) / (math.sqrt(2) * sd)) - erf(-r0 / (math.sqrt(2) * sd))
        first = (2 * sd**3 + r0**2 * sd + r0 * sd) * normal((1 - r0) / sd)
        second = (2 * sd**3 + r0**2 * sd - sd) * normal(-r0 / sd)
        return -self.lam * scale * (first - second - (r0**3 + (3 * variance - 1) * r0) / 2 * mass)


def main() -> None:
    """Mean time of one integral and largest relative error, method by method, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    problems = [Problem(rng) for _ in range(PROBLEMS)]
    exact = [quad(p.ray, 0, 2 * math.pi, epsabs=0, epsrel=1e-12, limit=400)[0] for p in problems]
    linspace, step = np.linspace(0, 2 * math.pi, 100), 2 * math.pi / 100
    periodic = np.arange(100) * step
    methods = {
        "2D-Num": lambda p: dblquad(p.plane, -0.5, 1.5, -0.5, 1.5, epsabs=1e-4)[0],
        "2D-Num-Circle": lambda p: dblquad(p.disc, -1, 1, -1, 1, epsabs=1e-4)[0],
        "2D-Num-Polar": lambda p: dblquad(
            lambda r, a: r * p.disc(r * math.cos(a), r * math.sin(a)), 0, 2 * math.pi, 0, 1, epsabs=1e-4
        )[0],
        "1D-Num": lambda p: quad(p.ray, 0, 2 * math.pi)[0],
        "1D-Naive (both ends, as published)": lambda p: float(np.sum(p.ray(linspace)) * step),
        "1D-Naive (periodic, corrected)": lambda p: float(np.sum(p.ray(periodic)) * step),
    }
    few = {"2D-Num": 2, "2D-Num-Circle": 5, "2D-Num-Polar": 10}
    table = {}
    for name, method in methods.items():
        count = few.get(name, PROBLEMS)
        start = time.perf_counter()
        integrals = [method(p) for p in problems[:count]]
        elapsed = 1e3 * (time.perf_counter() - start) / count
        error = max(abs(a - b) / b for a, b in zip(integrals, exact, strict=False))
        table[name] = (elapsed, error)
    ours, error = chords(problems, exact)
    print("| method | ms per integral | largest relative error |\n|---|---|---|")
    for name, (ms, worst) in {**table, "chords, 32 (ours, 100 at once)": (ours, error)}.items():
        print(f"| {name} | {ms:.4g} | {worst:.1e} |")
    torch.set_num_threads(threads)
    report("quadrature", [Row(f"one integral, error {e:.0e}", "ms", ours, n, ms) for n, (ms, e) in table.items()])


def chords(problems: list[Problem], exact: list[float]) -> tuple[float, float]:
    """Time of one of a hundred integrals in a batch, and the largest error over the same problems."""
    integrals, elapsed = [], 0.0
    for p in problems:
        density = C.Paraboloid(torch.from_numpy(p.mean), torch.from_numpy(p.var))
        basis = C.GaussianBasis(torch.from_numpy(p.centre).expand(100, 2), torch.from_numpy(p.s))
        density.expect(basis)
        start = time.perf_counter()
        integrals.append(density.expect(basis)[0].item())
        elapsed += time.perf_counter() - start
    return 1e3 * elapsed / len(problems) / 100, max(abs(a - b) / b for a, b in zip(integrals, exact, strict=True))
