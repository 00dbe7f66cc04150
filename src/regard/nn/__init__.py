"""Modules: thin, they hold parameters."""

from regard.nn.learned import Entmax, Learned
from regard.nn.multihead import MultiheadAttention
from regard.nn.pool import AttentionPool, Pooled
from regard.nn.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.nn.wasserstein import Gate, WassersteinSelfAttention

__all__ = [
    "AttentionPool",
    "Entmax",
    "Gate",
    "Learned",
    "MultiheadAttention",
    "Pooled",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "WassersteinSelfAttention",
]
