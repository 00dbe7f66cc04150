"""The value: Sinkhorn's map with its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor

from regard import _check
from regard.maps._value import MapValue
from regard.maps.sinkhorn.function import sinkhorn


@final
@dataclass(frozen=True, eq=False, repr=False)
class Sinkhorn(MapValue):
    """Doubly stochastic attention (6.1): a map whose rows sum to one and whose columns all get the same total.

    `sinkhorn` with fixed settings, as a map for `attend`: rows are queries, and `dim` is the axis of the
    keys, the last or the one before it. Scores are divided by `eps`. Gradients and edge cases as in `sinkhorn`.

    >>> import torch
    >>> Sinkhorn(tol=1e-6)(torch.tensor([[3.0, 1.0], [2.0, 2.0]]))
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """

    eps: float = 1.0
    iterations: int | None = None
    tol: float | None = None
    gradient: Literal["unrolled", "implicit"] = "unrolled"
    function = sinkhorn
    competes: ClassVar[bool] = False

    @property
    def couples_rows(self) -> bool:
        """A row depends on all the others."""
        return True

    def __call__(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights with the shape and dtype of s."""
        _check.floating("s", s, min_dims=2)
        dim = _check.axis("s", s, dim)
        if dim == -2:
            return self(s.mT, -1, None if mask is None else mask.expand_as(s).mT).mT
        if dim != -1:
            _check.complain("dim", dim, "-1 or -2", "Sinkhorn couples the last two axes; move yours there.")
        result = sinkhorn(s, self.eps, self.iterations, self.tol, mask=mask, gradient=self.gradient)
        return result.weights.to(s.dtype)
