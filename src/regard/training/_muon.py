"""Muon: orthogonalised momentum steps for matrices and kernels; Adam for other parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard import _check
from regard._torch import foreach
from regard.training._optim import loss_of

# An odd polynomial; iterated five times it maps (0, 1] to about 0.7 to 1.2 (Jordan and others, 2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


def muon_groups(module: nn.Module, apart: Collection[str] = ()) -> list[dict[str, Any]]:
    """Parameter groups for `Muon`: matrices and kernels by the number of their parts; other parameters with 0 parts.

    Queries, keys and values that share a matrix are three parts, the gates of an LSTM four. Parameters whose name
    begins with one of `apart` take Adam's steps, as the last layer of a classifier should.

    >>> [(g["parts"], len(g["params"])) for g in muon_groups(nn.LSTM(8, 8))]
    [(0, 2), (4, 2)]
    """
    by_parts: dict[int, list[Tensor]] = {0: []}
    for path, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            full_name = f"{path}.{name}" if path else name
            plain = parameter.dim() < 2 or isinstance(owner, nn.Embedding) or full_name.startswith(tuple(apart))
            parts = 4 if isinstance(owner, nn.LSTM) else 3 if name == "in_proj_weight" else 1
            by_parts.setdefault(0 if plain else parts, []).append(parameter)
    return [{"params": parameters, "parts": parts} for parts, parameters in sorted(by_parts.items()) if parameters]


class Muon(Optimizer):
    """Orthogonalised momentum steps (Jordan and others, 2024): all directions of a matrix move at the same rate.

    A parameter of a group with `parts` n > 0 is a stack of n matrices along its first axis (kernels of convolutions are
    flattened to matrices). The step of a matrix with momentum U S V' is about U V' times 0.2 sqrt(its longer side),
    which has the size of Adam's step (Liu and others, 2025): one `lr` fits all. A group with `parts` 0 takes Adam's
    steps.

    `groups`: as `muon_groups` makes them.
    `lr`: the learning rate; default 2e-3.
    `momentum`: default 0.95.
    `betas`, `eps`: Adam's; default (0.9, 0.98) and 1e-9.

    `torch.optim.Muon`, which newer releases of torch have, does the same with weight_decay=0 and
    adjust_lr_fn="match_rms_adamw", but in bfloat16: its steps are 1 to 2 % off, and 9 % where singular values span four
    decades (here: 1e-5, in float32). It takes matrices only, no kernels, parts or Adam groups; its steps shrink where
    the momentum's norm is below 1e-7; and it processes the matrices one by one. The tests compare both.

    >>> w = nn.Parameter(torch.zeros(2, 2))
    >>> w.grad = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    >>> Muon([{"params": [w], "parts": 1}], lr=1.0).step()
    >>> (w.data.diagonal() < -0.15).all()
    tensor(True)
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float = 2e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
    ) -> None:
        _check.number("lr", lr, at_least=0)
        _check.share("momentum", momentum)
        super().__init__(groups, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "parts": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step."""
        loss = loss_of(closure)
        by_shape: dict[tuple[int, int, float], list[tuple[Tensor, Tensor]]] = {}
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters and group["parts"]:
                for w, step in self._matrices(parameters, group):
                    by_shape.setdefault((*w.shape, group["lr"]), []).append((w, step))
            elif parameters:
                self._adam(parameters, group)
        # Matrices of one shape, from all groups, are orthogonalised in one batch.
        for (_, longer, lr), pairs in by_shape.items():
            steps = orthogonal(torch.stack([step for _, step in pairs]))
            foreach("sub_", [w for w, _ in pairs], list(steps.unbind()), alpha=0.2 * longer**0.5 * lr)
        return loss

    def _matrices(self, parameters: list[Tensor], group: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """The matrices of parameters, transposed to be at least as wide as high, each with its Nesterov momentum."""
        gradients = _gradients(parameters)
        momenta = self._state(parameters, "momentum")
        foreach("lerp_", momenta, gradients, 1 - group["momentum"])
        for pair in zip(parameters, foreach("lerp", gradients, momenta, group["momentum"]), strict=True):
            for w, step in zip(*(x.flatten(1).chunk(group["parts"]) for x in pair), strict=True):
                yield (w, step) if w.shape[0] <= w.shape[1] else (w.mT, step.mT)

    def _adam(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        first, second = group["betas"]
        gradients = _gradients(parameters)
        means, squares = (self._state(parameters, name) for name in ("mean", "square"))
        counts = [self.state[parameter].get("count", 0) + 1 for parameter in parameters]
        for parameter, count in zip(parameters, counts, strict=True):
            self.state[parameter]["count"] = count
        foreach("lerp_", means, gradients, 1 - first)
        foreach("mul_", squares, second)
        foreach("addcmul_", squares, gradients, gradients, value=1 - second)
        scales = foreach("sqrt", foreach("div", squares, [1 - second**count for count in counts]))
        foreach("add_", scales, group["eps"])
        foreach("addcdiv_", parameters, means, scales, [-group["lr"] / (1 - first**count) for count in counts])

    def _state(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """A tensor of the state of each parameter, zero at first."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def orthogonal(x: Tensor) -> Tensor:
    """U S' V' for matrices x = U S V' (..., m, n), with S' between about 0.7 and 1.2 where S is not tiny.

    >>> orthogonal(torch.diag(torch.tensor([4.0, 1.0, 0.2]))).diagonal().round(decimals=1).min() > 0.6
    tensor(True)
    """
    wide = x.shape[-2] <= x.shape[-1]
    y = x if wide else x.mT
    y = y / y.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)
    a, b, c = _QUINTIC
    if y.shape[-1] < 2 * y.shape[-2]:
        for _ in range(_ROUNDS):
            gram = y @ y.mT
            y = a * y + (b * gram + c * gram @ gram) @ y
    else:
        # The iterates are polynomials of one symmetric matrix, which commute: they are computed on the short side.
        gram = y @ y.mT
        one = torch.eye(y.shape[-2], dtype=y.dtype, device=y.device)
        factor = product = a * one + b * gram + c * gram @ gram
        for _ in range(_ROUNDS - 1):
            gram = factor @ gram @ factor
            factor = a * one + b * gram + c * gram @ gram
            product = factor @ product
        y = product @ y
    out: Tensor = y if wide else y.mT
    return out
