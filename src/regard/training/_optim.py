"""LARS, LARC, parameter groups with and without weight decay, and the cosine schedule with a warm-up."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard import _check


def groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weight decay on matrices and kernels, none on norms and biases (vectors and numbers).

    >>> [(len(g["params"]), g["weight_decay"]) for g in groups(nn.Linear(3, 2), 0.1)]
    [(1, 0.1), (1, 0.0)]
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def cosine(
    steps: int, warmup: int = 0, start: float = 0.0, end: float = 0.0, *, first: float | None = None
) -> Callable[[int], float]:
    """A schedule, from a step to the factor of the learning rate: linear warm-up, then half a cosine.

    `steps`: of the whole run.
    `warmup`: steps in which the factor rises from `start` to 1; default 0.
    `start`: the factor before the warm-up; default 0.
    `end`: the factor at the end; default 0.
    `first`: the factor of the first step of the warm-up, in place of `start`; default None. The factors are then evenly
        spaced from `first` to 1, both included, as published for SwAV.

    >>> factor = cosine(100, warmup=10)
    >>> [round(factor(step), 3) for step in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    >>> [round(cosine(100, warmup=5, first=0.2)(step), 3) for step in range(6)]
    [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    """
    _check.count("steps", steps)
    _check.count("warmup", warmup, at_least=0)

    def factor(step: int) -> float:
        if step < warmup and first is not None:
            return first + (1 - first) * step / max(1, warmup - 1)
        if step < warmup:
            return start + (1 - start) * (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        return end + (1 - end) * (1 + math.cos(math.pi * min(1.0, progress))) / 2

    return factor


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """The loss that an optimiser's closure returns, with gradients enabled; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class _Layerwise(Optimizer, ABC):
    """Momentum SGD with a rate of its own for each weight; arguments as in `LARS`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        _check.number("lr", lr, at_least=0)
        _check.share("momentum", momentum)
        _check.number("weight_decay", weight_decay, at_least=0)
        _check.number("trust", trust, above=0)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _momentum_step(self, parameter, self._scaled(parameter, parameter.grad, group), group)
        return loss

    @abstractmethod
    def _scaled(self, w: Tensor, slope: Tensor, group: dict[str, Any]) -> Tensor:
        """The gradient `slope` of a weight with its decay, at the rate of that weight."""


@final
class LARS(_Layerwise):
    """Momentum SGD whose step in each weight is in proportion to the weight's norm (You, Gitman, Ginsburg 2017).

    The gradient g (with weight decay added) of a weight w is multiplied by `trust` |w| / |g| before the momentum.
    Groups without weight decay, and weights or gradients that are all zero, take plain momentum steps.

    `params`: parameters, or groups of them.
    `lr`: the learning rate; default 0.1.
    `momentum`: default 0.9.
    `weight_decay`: default 0.
    `trust`: the step's norm over the weight's at `lr` 1, before momentum; default 0.001.

    >>> w = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    >>> w.grad = torch.tensor([[0.0, 10.0]])
    >>> LARS([{"params": [w], "weight_decay": 1e-9}], lr=1.0, trust=0.1).step()
    >>> w.data
    tensor([[3.0000, 3.5000]])
    """

    def _scaled(self, w: Tensor, slope: Tensor, group: dict[str, Any]) -> Tensor:
        if not group["weight_decay"]:
            return slope
        slope = slope + group["weight_decay"] * w
        size, steepness = w.norm(), slope.norm()
        return slope * torch.where((size > 0) & (steepness > 0), group["trust"] * size / steepness, 1.0)


@final
class LARC(_Layerwise):
    """LARS as SwAV was published with, the LARC of NVIDIA's apex without clipping.

    The gradient g of a weight w with decay d becomes `trust` |w| / (|g| + d |w| + 1e-8) (g + d w) before the momentum:
    the norms are added in the denominator, where `LARS` takes the norm of the sum g + d w. All parameters are scaled,
    norms and biases too. Weights or gradients that are all zero take plain momentum steps, without decay. Arguments as
    in `LARS`.

    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 10.0])
    >>> LARC([w], lr=1.0, trust=0.1).step()
    >>> w.data
    tensor([3.0000, 3.5000])
    """

    def _scaled(self, w: Tensor, slope: Tensor, group: dict[str, Any]) -> Tensor:
        decay = group["weight_decay"]
        size, steepness = w.norm(), slope.norm()
        rate = group["trust"] * size / (steepness + decay * size + _NO_SLOPE)
        return torch.where((size > 0) & (steepness > 0), rate * (slope + decay * w), slope)


_NO_SLOPE = 1e-8  # added to LARC's denominator


def _momentum_step(optimizer: Optimizer, w: Tensor, step: Tensor, group: dict[str, Any]) -> None:
    """Add a step to the momentum of a weight, and move the weight by it."""
    momentum = optimizer.state[w].get("momentum")
    if momentum is None:
        momentum = optimizer.state[w]["momentum"] = torch.zeros_like(w)
    momentum.mul_(group["momentum"]).add_(step)
    w.sub_(group["lr"] * momentum)
