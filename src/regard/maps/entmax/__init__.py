"""Softmax, sparsemax and entmax: functions, values, the threshold's solver, derivatives, operator, export, kernel."""

from regard.maps.entmax.function import entmax, softmax, sparsemax
from regard.maps.entmax.value import Entmax, Softmax, Sparsemax, entmax_order

__all__ = ["Entmax", "Softmax", "Sparsemax", "entmax", "entmax_order", "softmax", "sparsemax"]
