"""A verdict on one architecture, and how outputs of two models are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tools.hf_zoo.special import ROUGH

TOLERANCE = 1e-5
UNSEEN = 1e-6  # a change of outputs below this is rounding


@dataclass
class Verdict:
    """What was found; `wrong` is empty unless regard does something that the model's own attention does not."""

    type: str
    model: str = ""
    verdict: str = ""
    reason: str = ""
    error: float = 0.0
    reached: int = 0
    missed: list[str] = field(default_factory=list)
    causal: str = ""
    padding: str = ""
    attentions: str = ""
    alphas: str = ""
    cache: str = ""
    wrong: list[str] = field(default_factory=list)

    as_dict = asdict


def run(model: nn.Module, given: dict[str, Any], **more: Any) -> Any:
    """One forward pass without gradients, with the same random numbers each time."""
    torch.manual_seed(1)
    with torch.no_grad():
        return model(**{**given, **more})


def tensors(out: Any) -> list[Tensor]:
    """All floating-point tensors of an output, in order."""
    if isinstance(out, Tensor):
        return [out] if out.is_floating_point() else []
    if isinstance(out, dict):
        return [x for value in out.values() for x in tensors(value)]
    if isinstance(out, (tuple, list)):
        return [x for value in out for x in tensors(value)]
    return []


def places(out: Any, length: int) -> list[Tensor]:
    """The first output that has one entry for each token, (B, L, ...)."""
    return [x for x in tensors(out) if x.dim() == 3 and x.shape[1] == length][:1]


def kept(out: Any, keep: Tensor | None) -> list[Tensor]:
    """The first output: all of it, or at the places `keep` (B, L) of the tokens; what follows them, if it is longer."""
    if keep is None:
        return tensors(out)[:1]
    length = keep.shape[1]
    longer = [x[:, length:] for x in tensors(out) if x.dim() == 3 and x.shape[1] > length][:1]
    return [x[keep] for x in places(out, length)] or longer


def pooled(out: Any) -> list[Tensor]:
    """The outputs that have no axis of tokens, (B,) or (B, D)."""
    return [x for x in tensors(out) if x.dim() < 3]


def without_weights(out: Any) -> Any:
    """An output without attention weights: some models return those of eager attention unasked."""
    return {name: x for name, x in out.items() if "attention" not in name} if isinstance(out, dict) else out


def distance(x: Tensor, y: Tensor) -> float:
    """The largest difference, in units of one or of the largest number of `x` that is not the same in `y`.

    What is the same is left out: -1e4 at places that a model masks would make every difference small.
    """
    if x.shape != y.shape:
        return float("inf")
    if x.numel() == 0:
        return 0.0
    same = (x == y) | (x.isnan() & y.isnan())
    gap = torch.where(same, 0.0, (x - y).abs())
    other = x[~same & x.isfinite()]
    top = float(other.abs().max()) if other.numel() else 1.0
    return float(gap.nan_to_num(float("inf")).max()) / max(1.0, top)


def difference(found: Verdict, what: str, expected: Any, got: Any) -> float:
    """Of all outputs; what is too large is wrong."""
    first, second = tensors(expected), tensors(got)
    if len(first) != len(second):
        found.wrong.append(f"{what}: {len(second)} outputs, eager {len(first)}")
        return float("inf")
    worst = max((distance(x, y) for x, y in zip(first, second, strict=True)), default=0.0)
    if worst > ROUGH.get(found.type, TOLERANCE):
        found.wrong.append(f"{what}: differs from eager by {worst:.1e}")
    return worst
