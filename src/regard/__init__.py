"""Visual attention: affinities, maps and expectations, exact, fast and differentiable."""

from regard._check import checks

__version__ = "0.1.0"

__all__ = ["checks"]
