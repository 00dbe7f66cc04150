"""The names of the entmax package, on regard's functions."""

import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

import regard

TESTS = ["entmax"]  # its tests lie in the package
_INSIDE = "Calls private functions that return the threshold of a sorted row; regard finds it without a sort."
REASONS = {
    "*test_topk::test_entmax_topk*": _INSIDE,
    "*test_topk::test_sparsemax_topk*": _INSIDE,
}


def sparsemax(X, dim=-1, k=None, return_support_size=False):  # noqa: D103
    return regard.sparsemax(X, dim)


def entmax15(X, dim=-1, k=None, return_support_size=False):  # noqa: D103
    return regard.entmax(X, 1.5, dim)


def sparsemax_bisect(X, dim=-1, n_iter=50, ensure_sum_one=True):  # noqa: D103
    return regard.sparsemax(X, dim)


def entmax_bisect(X, alpha=1.5, dim=-1, n_iter=50, ensure_sum_one=True):  # noqa: D103
    return regard.entmax(X, alpha, dim)


def normmax_bisect(X, alpha=2, dim=-1, n_iter=50):  # noqa: D103
    return regard.normmax(X, alpha, dim)


def budget_bisect(X, budget=2, dim=-1, n_iter=50):  # noqa: D103
    return regard.budget_sparsemax(X, budget, dim)


def _module(function):
    class Map(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.options = options

        def forward(self, X):
            return function(X, **self.options)

    return Map


def _loss(function):
    class Loss(nn.Module):
        def __init__(self, k=None, n_iter=None, ignore_index=-100, reduction="elementwise_mean", **options):
            super().__init__()
            self.options = options | {"ignore_index": int(ignore_index), "reduction": reduction}

        def forward(self, X, target):
            return function(X, target, **self.options)

    return Loss


def install():
    """Put the names where the tests look for them; the tests themselves stay in the checkout."""
    torch.manual_seed(0)  # the tests draw without a seed; one gives `normmax` alphas that may be below one
    names = {
        "entmax": {},
        "entmax.activations": {
            "sparsemax": sparsemax,
            "entmax15": entmax15,
            "Sparsemax": _module(sparsemax),
            "Entmax15": _module(entmax15),
            "_sparsemax_threshold_and_support": None,
            "_entmax_threshold_and_support": None,
        },
        "entmax.root_finding": {
            f.__name__: f for f in (sparsemax_bisect, entmax_bisect, normmax_bisect, budget_bisect)
        },
        "entmax.losses": {
            "SparsemaxLoss": _loss(regard.sparsemax_loss),
            "Entmax15Loss": _loss(regard.entmax_loss),
            "SparsemaxBisectLoss": _loss(regard.sparsemax_loss),
            "EntmaxBisectLoss": _loss(regard.entmax_loss),
            "NormmaxBisectLoss": _loss(regard.normmax_loss),
        },
    }
    for name, inside in names.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(inside)
    sys.modules["entmax"].__path__ = [str(Path.cwd() / "entmax")]
