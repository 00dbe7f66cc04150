"""Modules: they hold parameters, and call the functions of regard."""

from regard.nn.continuous import ContinuousAttentionPool, ContinuousSelfAttention
from regard.nn.insert import insert_nonlocal
from regard.nn.learned import Entmax, Learned
from regard.nn.multihead import MultiheadAttention
from regard.nn.non_local import NonLocal1d, NonLocal2d, NonLocal3d
from regard.nn.pool import AttentionPool, Pooled
from regard.nn.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.nn.wasserstein import Gate, WassersteinSelfAttention

__all__ = [
    "AttentionPool",
    "ContinuousAttentionPool",
    "ContinuousSelfAttention",
    "Entmax",
    "Gate",
    "Learned",
    "MultiheadAttention",
    "NonLocal1d",
    "NonLocal2d",
    "NonLocal3d",
    "Pooled",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "WassersteinSelfAttention",
    "insert_nonlocal",
]
