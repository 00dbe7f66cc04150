"""Muon: steps whose matrices are orthogonal, for matrices and kernels; Adam for all else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard import _check
from regard._torch import foreach
from regard.training._optim import loss_of

# An odd polynomial whose fivefold iterate takes (0, 1] to about 0.7 to 1.2 (Jordan and others, 2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


def muon_groups(module: nn.Module, apart: Collection[str] = ()) -> list[dict[str, Any]]:
    """Parameter groups for `Muon`: matrices and kernels by the number of their parts, and, with 0 parts, all else.

    Queries, keys and values that share a matrix are three parts, the gates of an LSTM four. Parameters whose name
    begins with one of `apart` take Adam's steps, as the last layer of a classifier should.

    >>> [(g["parts"], len(g["params"])) for g in muon_groups(nn.LSTM(8, 8))]
    [(0, 2), (4, 2)]
    """
    found: dict[int, list[Tensor]] = {0: []}
    for path, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            whole = f"{path}.{name}" if path else name
            plain = parameter.dim() < 2 or isinstance(owner, nn.Embedding) or whole.startswith(tuple(apart))
            parts = 4 if isinstance(owner, nn.LSTM) else 3 if name == "in_proj_weight" else 1
            found.setdefault(0 if plain else parts, []).append(parameter)
    return [{"params": parameters, "parts": parts} for parts, parameters in sorted(found.items()) if parameters]


class Muon(Optimizer):
    """Momentum steps made orthogonal (Jordan and others, 2024): every direction of a matrix learns at the same pace.

    A group with `parts` n > 0 holds matrices (kernels of convolutions are flattened to them), each n of them one below
    the other. The step of a matrix is U V' of its momentum U S V', nearly, times 0.2 sqrt(its longer side), which gives
    it the size of Adam's step (Liu and others, 2025): one `lr` fits all. A group with `parts` 0 takes Adam's steps.

    `torch.optim.Muon`, which newer releases of torch have, does the same with weight_decay=0 and
    adjust_lr_fn="match_rms_adamw", but in bfloat16: its steps are 1 to 2 % off, and 9 % where singular values span four
    decades (ours: 1e-5, in float32). It takes matrices alone, no kernels, no parts and nothing for Adam; its steps
    shrink where the momentum's norm is below 1e-7; and it goes through the matrices one by one. The tests compare both.

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
        alike: dict[tuple[int, int, float], list[tuple[Tensor, Tensor]]] = {}
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moving and group["parts"]:
                for w, step in self._matrices(moving, group):
                    alike.setdefault((*w.shape, group["lr"]), []).append((w, step))
            elif moving:
                self._adam(moving, group)
        # Matrices of one shape, from all groups, are made orthogonal together.
        for (_, longer, lr), pairs in alike.items():
            steps = orthogonal(torch.stack([step for _, step in pairs]))
            foreach("sub_", [w for w, _ in pairs], list(steps.unbind()), alpha=0.2 * longer**0.5 * lr)
        return loss

    def _matrices(self, parameters: list[Tensor], group: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """The matrices of parameters, at least as wide as high, each with its momentum, a step ahead."""
        gradients = _gradients(parameters)
        memories = self._remember(parameters, "momentum")
        foreach("lerp_", memories, gradients, 1 - group["momentum"])
        for pair in zip(parameters, foreach("lerp", gradients, memories, group["momentum"]), strict=True):
            for w, ahead in zip(*(x.flatten(1).chunk(group["parts"]) for x in pair), strict=True):
                yield (w, ahead) if w.shape[0] <= w.shape[1] else (w.mT, ahead.mT)

    def _adam(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        first, second = group["betas"]
        gradients = _gradients(parameters)
        means, squares = (self._remember(parameters, name) for name in ("mean", "square"))
        counts = [self.state[parameter].get("count", 0) + 1 for parameter in parameters]
        for parameter, count in zip(parameters, counts, strict=True):
            self.state[parameter]["count"] = count
        foreach("lerp_", means, gradients, 1 - first)
        foreach("mul_", squares, second)
        foreach("addcmul_", squares, gradients, gradients, value=1 - second)
        scales = foreach("sqrt", foreach("div", squares, [1 - second**count for count in counts]))
        foreach("add_", scales, group["eps"])
        foreach("addcdiv_", parameters, means, scales, [-group["lr"] / (1 - first**count) for count in counts])

    def _remember(self, parameters: list[Tensor], name: str) -> list[Tensor]:
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
        # The rounds are polynomials of one symmetric matrix, which commute: they can be taken on the short side alone.
        gram = y @ y.mT
        one = torch.eye(y.shape[-2], dtype=y.dtype, device=y.device)
        turn = whole = a * one + b * gram + c * gram @ gram
        for _ in range(_ROUNDS - 1):
            gram = turn @ gram @ turn
            turn = a * one + b * gram + c * gram @ gram
            whole = turn @ whole
        y = whole @ y
    out: Tensor = y if wide else y.mT
    return out
