"""Learnable parts of an attention, to pass to a module: affinities that hold tensors, and alpha."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from regard import _check
from regard.affinity import Affinity
from regard.attention.arguments import Map
from regard.maps._value import MapValue
from regard.maps.entmax import Entmax as EntmaxValue
from regard.maps.entmax import entmax
from regard.maps.spelling import as_map


class Learned(nn.Module):
    """An affinity whose tensors are learned: `Learned(Bilinear, weight=...)` makes `Bilinear(weight)` at every call.

    `make` is the class of an affinity, and `tensors` are its arguments, copied into parameters of the same names. With
    a leading axis of heads, (H, d, d) or (H, d), each head learns a tensor of its own.

    >>> from regard import Additive, Bilinear
    >>> layer = Learned(Bilinear, weight=torch.eye(16).expand(4, 16, 16) / 4)
    >>> layer
    Learned(Bilinear, weight=(4, 16, 16))
    >>> layer().scores(torch.ones(4, 2, 16), torch.ones(4, 3, 16)).shape
    torch.Size([4, 2, 3])
    """

    def __init__(self, make: Callable[..., Affinity], **tensors: Tensor) -> None:
        """Copy the tensors into parameters, and build the affinity once as a check."""
        super().__init__()
        self.make = make
        self._names = tuple(tensors)
        for name, x in tensors.items():
            _check.floating(name, x)
            self.register_parameter(name, nn.Parameter(x.detach().clone(memory_format=torch.contiguous_format)))
        if not isinstance(self(), Affinity):
            got = getattr(make, "__name__", type(make).__name__)
            _check.complain("make", got, "the class of an affinity", "For example regard.Bilinear.", TypeError)

    def forward(self) -> Affinity:
        """The affinity with the current parameters."""
        return self.make(**{name: getattr(self, name) for name in self._names})

    def extra_repr(self) -> str:
        """The class of the affinity, and the shapes of its tensors."""
        shapes = (f"{name}={tuple(getattr(self, name).shape)}" for name in self._names)
        return ", ".join([getattr(self.make, "__name__", repr(self.make)), *shapes])


class Entmax(nn.Module):
    """See `regard.entmax`: alpha is learned, one per head, and stays above one (docs/math.md, 2.4).

    It is a map of scores (..., heads, Lq, Lk). The parameter is `free`, with alpha = 1 + softplus(free).

    >>> map = Entmax(heads=4, alpha=1.5)
    >>> map.alpha.flatten()
    tensor([1.5000, 1.5000, 1.5000, 1.5000], grad_fn=<ViewBackward0>)
    >>> map(torch.randn(2, 4, 5, 7)).shape
    torch.Size([2, 4, 5, 7])
    """

    free: nn.Parameter

    def __init__(self, heads: int = 1, alpha: float = 1.5) -> None:
        """Start at this alpha in every head."""
        super().__init__()
        alpha = _check.number("alpha", alpha, above=1, remedy="For softmax itself pass regard.softmax.")
        self.heads = _check.count("heads", heads)
        free = math.log(math.expm1(alpha - 1)) if alpha < 30 else alpha - 1
        self.free = nn.Parameter(torch.full((heads, 1, 1), free))

    @property
    def alpha(self) -> Tensor:
        """Alpha of each head (heads, 1, 1)."""
        return 1 + softplus(self.free)

    def value(self) -> EntmaxValue:
        """The map with the current alphas; one number where they are equal in all heads and not being learned."""
        if not self.free.requires_grad and _check.readable(self.free):
            alphas = self.alpha.flatten().tolist()
            if max(alphas) == min(alphas):
                return EntmaxValue(round(alphas[0], 6))
        return EntmaxValue(self.alpha)

    def forward(self, s: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        """Weights for scores (..., heads, Lq, Lk)."""
        return entmax(s, self.alpha, dim, mask)

    def extra_repr(self) -> str:
        """The number of heads, and the range of alpha."""
        alpha = self.alpha.detach()
        if alpha.is_meta:
            return f"heads={self.heads}"
        low, high = float(alpha.min()), float(alpha.max())
        return f"heads={self.heads}, alpha={low:.4g}" + ("" if low == high else f" to {high:.4g}")


def check_affinity(affinity: object) -> None:
    """Check that this is an affinity, and that a learnable tensor in it would be a parameter of the module."""
    if not isinstance(affinity, (Affinity, nn.Module)):
        got = getattr(affinity, "__name__", type(affinity).__name__)
        remedy = "Make one, for example Dot(), or Learned(Bilinear, weight=...)."
        _check.complain("affinity", got, "an Affinity object", remedy, TypeError)
    attributes = {} if isinstance(affinity, nn.Module) else vars(affinity)
    if any(isinstance(x, Tensor) and x.requires_grad for x in attributes.values()):
        remedy = f"Use Learned({type(affinity).__name__}, ...), whose tensors are parameters."
        _check.complain("affinity", "a tensor that requires a gradient", "one that the module can hold", remedy)


def held_map(map: object) -> Any:
    """The map as an attribute of a module: an nn.Module as it is, all else as a value (`regard.maps.spelling.as_map`).

    A value with a learnable tensor is an error: the module would not train it.
    """
    if isinstance(map, nn.Module):
        return map
    value = as_map(map)
    parameters = value.parameters.values() if isinstance(value, MapValue) else ()
    if any(isinstance(x, Tensor) and x.requires_grad for x in parameters):
        remedy = "Use regard.nn.Entmax(heads), or a module of your own that holds it."
        _check.complain("map", "a tensor that requires a gradient", "one that the module can hold", remedy)
    return value


def name_of(part: Affinity | nn.Module | Map) -> str:
    """An affinity or a map as a repr shows it."""
    if isinstance(part, Affinity) and any(isinstance(x, Tensor) for x in vars(part).values()):
        return type(part).__name__
    return getattr(part, "__name__", repr(part))
