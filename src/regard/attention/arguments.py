"""The arguments of `attend`: their types, and the checks that they fit each other."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from regard import _check
from regard.affinity import Affinity

#: True is "lower-right": the last query sees all keys. "upper-left": the first query sees the first key alone.
Causal = bool | Literal["upper-left", "lower-right"]


class Solved(Protocol):
    """The result of a map that reports more than its weights."""

    @property
    def weights(self) -> Tensor:
        """Weights (..., Lq, Lk)."""


class Map(Protocol):
    """Step 2 (2.1) as a function: scores (..., Lq, Lk) and a mask to weights of the same shape, along the last axis.

    A map whose rows depend on each other has an attribute `couples_rows` that is True, and then gets all rows at once.

    >>> from regard import attend
    >>> attend(torch.ones(1, 2), torch.ones(3, 2), torch.eye(3), map=lambda s, *, mask: (s == s).float() / 3)
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    def __call__(self, s: Tensor, *, mask: Tensor | None) -> Tensor | Solved:
        """Weights, or an object with an attribute `weights`."""


def diagonal_of(causal: Causal, queries: int, keys: int) -> int | None:
    """Query i sees the keys up to i plus this number; None if it sees all."""
    _check.choice("causal", causal, (False, True, "upper-left", "lower-right"))
    return None if causal is False else 0 if causal == "upper-left" else keys - queries


def batch_of(*tensors: Tensor) -> torch.Size:
    """The leading dimensions of tensors (..., L, d), broadcast."""
    first = tensors[0].shape[:-2]
    if all(x.shape[:-2] == first for x in tensors[1:]):
        return first
    return torch.Size(torch.broadcast_shapes(*(x.shape[:-2] for x in tensors)))


def four_axes(x: Tensor) -> Tensor:
    """(..., L, d) as (B, H, L, d) with the last stride one; a single leading axis becomes B and not H."""
    if x.dim() < 4:
        x = x.unsqueeze(-3) if x.dim() == 3 else x[None, None]
    elif x.dim() > 4:
        x = x.flatten(0, -4)
    return x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def has_groups(q: Tensor, k: Tensor, v: Tensor | None) -> bool:
    """Whether the heads of the queries are a multiple of those of keys and values."""
    if min(x.dim() for x in (q, k, v) if x is not None) < 3 or 0 in (k.shape[-3], q.shape[-3]):
        return False
    return (v is None or v.shape[-3] == k.shape[-3]) and q.shape[-3] % k.shape[-3] == 0


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    affinity: Affinity,
    mask: Tensor | None,
    bias: Tensor | None = None,
    enable_gqa: bool = False,
) -> torch.Size:
    """The leading dimensions of the scores; an error if arguments do not fit each other. Arguments as in `attend`."""
    if not isinstance(affinity, Affinity):
        got = getattr(affinity, "__name__", type(affinity).__name__)
        _check.complain("affinity", got, "an Affinity object", "Make one, for example Dot().", TypeError)
    tensors = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    for name, x in tensors.items():
        _check.floating(name, x, min_dims=2)
        if x.dtype != q.dtype:
            _check.complain(name, x.dtype, f"the dtype of q, {q.dtype}", "Convert it with .to(q.dtype).", TypeError)
    if v is not None and v.shape[-2] != k.shape[-2]:
        _check.complain("v", f"{v.shape[-2]} values", f"one for each of the {k.shape[-2]} keys", "Check axis -2.")
    if k.shape[-2] == 0:
        _check.complain("k", "no keys", "at least one", "There is no distribution over nothing.")
    in_groups = has_groups(q, k, v)
    leading = [x[..., :1, :, :] if enable_gqa and in_groups and x is not q else x for x in tensors.values()]
    try:
        batch = batch_of(*leading)
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
        remedy = "Add axes of size 1 with unsqueeze."
        if enable_gqa:
            remedy = "With enable_gqa, k and v have the same heads on axis -3, and q a multiple of them."
        elif in_groups:
            remedy = "If heads of q share those of k and v in groups, pass enable_gqa=True."
        _check.complain("q, k, v", shapes, "leading dimensions that broadcast", remedy)
    if mask is not None:
        _check.boolean_mask(mask, torch.Size((*batch, q.shape[-2], k.shape[-2])), of="the scores")
    if bias is not None:
        _check.float_bias(bias, torch.Size((*batch, q.shape[-2], k.shape[-2])))
    return batch
