"""The norm of the authors' MCAN, which is not torch's LayerNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UnbiasedNorm(nn.Module):
    """Layer norm by the *unbiased* deviation: (x - mean) / (deviation + `eps`) * `weight` + `bias`.

    torch's LayerNorm divides by the root of the biased variance plus `eps`: at width 512 a model that was trained with
    one gives other numbers with the other. Parameters have LayerNorm's names. Shapes: (..., width) to the same.

    >>> UnbiasedNorm(3)(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.0000,  0.0000,  1.0000], grad_fn=<AddBackward0>)
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        """`weight` is one and `bias` zero at first."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised along the last axis."""
        deviation = x.std(-1, keepdim=True)  # unbiased by default
        return self.weight * (x - x.mean(-1, keepdim=True)) / (deviation + self.eps) + self.bias

    def extra_repr(self) -> str:
        """The width and eps."""
        return f"{len(self.weight)}, eps={self.eps}"

    @classmethod
    def put_into(cls, model: nn.Module) -> None:
        """Replace every LayerNorm of a model by an UnbiasedNorm with new parameters, in place."""
        for parent in list(model.modules()):
            for name, part in list(parent.named_children()):
                if isinstance(part, nn.LayerNorm):
                    setattr(parent, name, cls(part.normalized_shape[0]))
