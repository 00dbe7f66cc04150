"""Visual attention: affinities, maps and expectations, exact, fast and differentiable."""

from regard import continuous
from regard._attend import Map, Plan, attend, attention_weights, explain_attend
from regard._check import checks
from regard.affinity import Additive, Affinity, Bilinear, Concatenation, Dot, Factored
from regard.losses import entmax_loss, sparsemax_loss
from regard.maps.simplex import entmax, mean, softmax, sparsemax
from regard.maps.structured import tvmax

__version__ = "0.1.0"

__all__ = [
    "Additive",
    "Affinity",
    "Bilinear",
    "Concatenation",
    "Dot",
    "Factored",
    "Map",
    "Plan",
    "attend",
    "attention_weights",
    "checks",
    "continuous",
    "entmax",
    "entmax_loss",
    "explain_attend",
    "mean",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
    "tvmax",
]
