"""POT's Sinkhorn, distances on the line, slices and Bures, on regard's; all else is the installed POT itself."""

import importlib
import sys
import warnings

import torch

import regard
from regard import wasserstein

_SLICED = "test/sliced/test_sliced_distances.py::"
_LINE = "test/test_1d_solver.py::"
_ENTROPIC = "test/test_bregman.py::"
_GAUSSIAN = "test/test_gaussian.py::"
TESTS = [
    *(_SLICED + name for name in ("test_sliced_same_dist", "test_sliced_bad_shapes", "test_sliced_log")),
    *(_SLICED + name for name in ("test_sliced_different_dists", "test_1d_sliced_equals_emd", "test_sliced_same_proj")),
    *(_SLICED + name for name in ("test_sliced_backend", "test_sliced_backend_type_devices")),
    *(_LINE + name for name in ("test_wasserstein_1d", "test_wasserstein_1d_type_devices")),
    *(_GAUSSIAN + name for name in ("test_bures_wasserstein_distance", "test_bures_wasserstein_distance_batch")),
    *(_ENTROPIC + name for name in ("test_sinkhorn", "test_nan_warning", "test_sinkhorn_stabilization")),
    *(_ENTROPIC + name for name in ("test_sinkhorn_multi_b", "test_sinkhorn_backends", "test_sinkhorn2_backends")),
    *(_ENTROPIC + name for name in ("test_sinkhorn2_gradients", "test_sinkhorn_empty", "test_sinkhorn_variants")),
    *(_ENTROPIC + name for name in ("test_sinkhorn_variants_dtype_device", "test_sinkhorn2_variants_dtype_device")),
    *(_ENTROPIC + name for name in ("test_sinkhorn_variants_multi_b", "test_sinkhorn2_variants_multi_b")),
    *(_ENTROPIC + name for name in ("test_sinkhorn_variants_log", "test_sinkhorn_variants_log_multib")),
]
REASONS = {
    "*test_nan_warning*": "Wants a warning for reg = 0; here that is an error, which names the exact distance.",
}
_METHODS = ("sinkhorn", "sinkhorn_log", "sinkhorn_stabilized", "sinkhorn_epsilon_scaling", "greenkhorn")


def _tensor(x):
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(x)


def _given(x):
    """A tensor, or None for what POT takes as "uniform": nothing, or an empty list."""
    return None if x is None or len(x) == 0 else _tensor(x)


def _like(found, x):
    """As an array if an array came; a number of NumPy where there is one number."""
    return found if isinstance(x, torch.Tensor) else found.numpy()[()]


def sinkhorn(
    a, b, M, reg, method="sinkhorn", numItermax=1000, stopThr=1e-9, verbose=False, log=False, warn=True, **more
):
    """The plan, or for several targets (in columns of b) the cost of each."""
    plan, cost, found = _solved(a, b, M, reg, method, numItermax, stopThr, warn)
    answer = _like(cost if cost.dim() else plan, M)
    return (answer, _log(found, M)) if log else answer


def sinkhorn2(
    a, b, M, reg, method="sinkhorn", numItermax=1000, stopThr=1e-9, verbose=False, log=False, warn=False, **more
):
    """The cost of the plan."""
    _, cost, found = _solved(a, b, M, reg, method, numItermax, stopThr, warn)
    return (_like(cost, M), _log(found, M)) if log else _like(cost, M)


def _solved(a, b, M, reg, method, numItermax, stopThr, warn):
    if method.lower() not in _METHODS:
        raise ValueError(f"method: got {method!r}")
    costs, rows, columns = _tensor(M), _given(a), _given(b)
    if columns is not None and columns.dim() == 2:
        columns, costs = columns.mT, costs.expand(columns.shape[1], *costs.shape)
    tol = max(stopThr, 1e-5 if costs.dtype == torch.float32 else 1e-12) if stopThr else None
    found = regard.sinkhorn(-costs, reg, numItermax, tol, rows, columns)
    if warn and not bool((found.residual <= (tol or 0)).all()):
        warnings.warn("Sinkhorn did not converge", UserWarning, stacklevel=3)
    return found.plan, (found.plan * costs).sum((-2, -1)), found


def _log(found, M):
    f, g = (_like(x.detach(), M) for x in found.potentials)
    return {"err": [float(found.residual.max())], "niter": found.iterations, "alpha": f, "beta": g, "u": f, "v": g}


def wasserstein_1d(u_values, v_values, u_weights=None, v_weights=None, p=1, require_sort=True):
    """The p-th power of the distance; samples are in rows."""
    given = (None if x is None else _tensor(x) for x in (u_values, v_values, u_weights, v_weights))
    x, y, *weights = (x.mT if x is not None and x.dim() > 1 else x for x in given)
    return _like(wasserstein.wasserstein_1d(x, y, p, *weights) ** p, u_values)


def sliced_wasserstein_distance(
    X_s, X_t, a=None, b=None, n_projections=50, p=2, projections=None, seed=None, log=False, **more
):
    """POT draws the directions, so that a seed means the same."""
    import ot

    if X_s.shape[1] != X_t.shape[1]:
        raise ValueError("points of different widths")
    if projections is None:
        projections = ot.sliced.get_random_projections(X_s.shape[1], n_projections, seed, type_as=X_s)
    x, y, lines = _tensor(X_s), _tensor(X_t), _tensor(projections)
    weights = {"x_weights": _given(a), "y_weights": _given(b)}
    found = _like(wasserstein.sliced_wasserstein(x, y, lines, p, **weights), X_s)
    if not log:
        return found
    each = [float(wasserstein.sliced_wasserstein(x, y, line, p, **weights)) ** p for line in lines.mT[..., None]]
    return found, {"projections": projections, "projected_emds": each}


def bures_wasserstein_distance(ms, mt, Cs, Ct, paired=False, log=False, **more):
    """Between two, between pairs, or between all."""
    assert ms.ndim == mt.ndim
    found = wasserstein.bures_w2(*map(_tensor, (ms, Cs, mt, Ct)), pairwise=ms.ndim > 1 and not paired)
    found = _like(found, ms)
    return (found, {}) if log else found


def install():
    """Change the installed POT; the checkout has no compiled parts."""
    path, sys.path = sys.path, [place for place in sys.path if place and place != sys.path[0]]
    ot = importlib.import_module("ot")
    sys.path = path
    for place in (ot, ot.bregman):
        place.sinkhorn, place.sinkhorn2 = sinkhorn, sinkhorn2
    for place in (ot, ot.lp):
        place.wasserstein_1d = wasserstein_1d
    for place in (ot, ot.sliced):
        place.sliced_wasserstein_distance = sliced_wasserstein_distance
    ot.gaussian.bures_wasserstein_distance = bures_wasserstein_distance
