"""TVmax solved as it is written, (2.5.1): one quadratic program over the simplex, no split into two steps."""

import numpy as np
from scipy.optimize import lsq_linear, minimize


def edges(h, w, mask):
    """Pairs of neighbouring cells, by flat index, that both take part."""
    pairs = [(i * w + j, i * w + j + 1) for i in range(h) for j in range(w - 1)]
    pairs += [(i * w + j, (i + 1) * w + j) for i in range(h - 1) for j in range(w)]
    return [(a, b) for a, b in pairs if mask.flat[a] and mask.flat[b]]


def objective(p, s, gamma, mask=None):
    """1/2 |p - s|^2 + gamma TV(p) of one grid, over the cells that take part."""
    mask = np.ones(s.shape, bool) if mask is None else mask
    p, s, h, w = p.ravel(), s.ravel(), *mask.shape
    total = sum((p[i] - s[i]) ** 2 / 2 for i in range(h * w) if mask.flat[i])
    return total + gamma * sum(abs(p[a] - p[b]) for a, b in edges(h, w, mask))


def tvmax(s, gamma, mask=None):
    """One grid (h, w) in float64 by sequential quadratic programming, with a bound t_e >= |p_i - p_j| per edge."""
    mask = np.ones(s.shape, bool) if mask is None else mask
    cells = np.flatnonzero(mask)
    position = {cell: i for i, cell in enumerate(cells)}
    n, e = len(cells), edges(*s.shape, mask)
    scores = s.ravel()[cells] - s.ravel()[cells].max()
    d = np.zeros((len(e), n))
    for row, (a, b) in enumerate(e):
        d[row, position[a]], d[row, position[b]] = -1, 1
    above = np.block([[-d, np.eye(len(e))], [d, np.eye(len(e))]])
    total = np.concatenate([np.ones(n), np.zeros(len(e))])
    start = np.concatenate([np.full(n, 1 / n), np.zeros(len(e))])
    result = minimize(
        lambda x: ((x[:n] - scores) ** 2).sum() / 2 + gamma * x[n:].sum(),
        start,
        jac=lambda x: np.concatenate([x[:n] - scores, np.full(len(e), gamma)]),
        bounds=[(0, None)] * (n + len(e)),
        constraints=[
            {"type": "eq", "fun": lambda x: total @ x - 1, "jac": lambda x: total},
            {"type": "ineq", "fun": lambda x: above @ x, "jac": lambda x: above},
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    p = np.zeros(s.size)
    p[cells] = result.x[:n]
    return p.reshape(s.shape)


def smooth(s, gamma):
    """The proximal point of gamma TV at one grid (h, w), (2.5.4), by an exact active-set method for bounded squares."""
    e = edges(*s.shape, np.ones(s.shape, bool))
    d = np.zeros((len(e), s.size))
    for row, (a, b) in enumerate(e):
        d[row, a], d[row, b] = -1, 1
    dual = lsq_linear(d.T, s.ravel(), bounds=(-gamma, gamma), method="bvls", tol=1e-14, max_iter=10_000)
    return (s.ravel() - d.T @ dual.x).reshape(s.shape)


def project(q):
    """The nearest point of the simplex to all of q, by bisection on the threshold."""
    low, high = q.max() - 1, q.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(q - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(q - low, 0)
