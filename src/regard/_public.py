"""The public names of regard, imported when the first of them is used."""

from regard import continuous, nn, wasserstein
from regard._check import checks
from regard.affinity import Additive, Affinity, Bilinear, Concatenation, Dot, Factored, SoftCap
from regard.attention.algorithm import Plan
from regard.attention.arguments import Map
from regard.attention.attend import attend, explain_attend
from regard.attention.flow import FlowBounds, flow
from regard.attention.lazy import LazyWeights
from regard.attention.rollout import rollout
from regard.attention.sparse_weights import sparse_weights
from regard.attention.summaries import AttentionSummary, summarize
from regard.attention.weights import attention_weights
from regard.losses.densities import density_loss
from regard.losses.scores import entmax_loss, normmax_loss, sparsemax_loss
from regard.maps.budget_sparsemax import BudgetSparsemax, budget_sparsemax
from regard.maps.entmax import Entmax, Softmax, Sparsemax, entmax, softmax, sparsemax
from regard.maps.gates import Gate, Inverse, gate, inverse
from regard.maps.mean import Mean, mean
from regard.maps.normmax import Normmax, normmax
from regard.maps.sinkhorn import Sinkhorn, Transport, sinkhorn
from regard.maps.tvmax import TVmax, tvmax
from regard.native import native_kernels
from regard.wasserstein.affinities import (
    BuresW2,
    EmpiricalW2,
    EntropicW2,
    Euclidean,
    GaussianW2,
    HistogramW1,
    Unsquared,
)

__all__ = [
    "Additive",
    "Affinity",
    "AttentionSummary",
    "Bilinear",
    "BudgetSparsemax",
    "BuresW2",
    "Concatenation",
    "Dot",
    "EmpiricalW2",
    "Entmax",
    "EntropicW2",
    "Euclidean",
    "Factored",
    "FlowBounds",
    "Gate",
    "GaussianW2",
    "HistogramW1",
    "Inverse",
    "LazyWeights",
    "Map",
    "Mean",
    "Normmax",
    "Plan",
    "Sinkhorn",
    "SoftCap",
    "Softmax",
    "Sparsemax",
    "TVmax",
    "Transport",
    "Unsquared",
    "attend",
    "attention_weights",
    "budget_sparsemax",
    "checks",
    "continuous",
    "density_loss",
    "entmax",
    "entmax_loss",
    "explain_attend",
    "flow",
    "gate",
    "inverse",
    "mean",
    "native_kernels",
    "nn",
    "normmax",
    "normmax_loss",
    "rollout",
    "sinkhorn",
    "softmax",
    "sparse_weights",
    "sparsemax",
    "sparsemax_loss",
    "summarize",
    "tvmax",
    "wasserstein",
]
