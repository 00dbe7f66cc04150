"""Modules: thin, they hold parameters."""

from regard.nn.wasserstein import Gate, WassersteinSelfAttention

__all__ = ["Gate", "WassersteinSelfAttention"]
