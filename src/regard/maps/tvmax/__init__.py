"""TVmax: the function and its value, the operator that finds the regions, its plain solver and its native kernel."""

from regard.maps.tvmax.function import tvmax
from regard.maps.tvmax.value import TVmax

__all__ = ["TVmax", "tvmax"]
