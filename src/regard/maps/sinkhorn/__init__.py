"""Sinkhorn: the function and its value, the iterations, the log domain, the derivatives, the native kernel."""

from regard.maps.sinkhorn.function import Transport, sinkhorn
from regard.maps.sinkhorn.value import Sinkhorn

__all__ = ["Sinkhorn", "Transport", "sinkhorn"]
