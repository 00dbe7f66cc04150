"""Visual attention: affinities, maps and expectations, exact, fast and differentiable."""

from regard import continuous, nn, wasserstein
from regard._attend import attend, attention_weights
from regard._check import checks
from regard._plan import Map, Plan, explain_attend
from regard.affinity import Additive, Affinity, Bilinear, Concatenation, Dot, Factored
from regard.losses import entmax_loss, normmax_loss, sparsemax_loss
from regard.maps.budget import budget_sparsemax
from regard.maps.gates import gate, inverse
from regard.maps.normed import normmax
from regard.maps.simplex import entmax, mean, softmax, sparsemax
from regard.maps.structured import tvmax
from regard.maps.transport import Sinkhorn, Transport, sinkhorn
from regard.native import native_kernels
from regard.wasserstein.affinities import BuresW2, EmpiricalW2, EntropicW2, GaussianW2, HistogramW1, Unsquared

__version__ = "0.1.0"

__all__ = [
    "Additive",
    "Affinity",
    "Bilinear",
    "BuresW2",
    "Concatenation",
    "Dot",
    "EmpiricalW2",
    "EntropicW2",
    "Factored",
    "GaussianW2",
    "HistogramW1",
    "Map",
    "Plan",
    "Sinkhorn",
    "Transport",
    "Unsquared",
    "attend",
    "attention_weights",
    "budget_sparsemax",
    "checks",
    "continuous",
    "entmax",
    "entmax_loss",
    "explain_attend",
    "gate",
    "inverse",
    "mean",
    "native_kernels",
    "nn",
    "normmax",
    "normmax_loss",
    "sinkhorn",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
    "tvmax",
    "wasserstein",
]
