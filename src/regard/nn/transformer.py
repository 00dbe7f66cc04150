"""Transformer layers with any affinity and any map, in the shape of torch's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from regard import _check
from regard.affinity import Affinity, Dot
from regard.attention.arguments import Map
from regard.maps.entmax import softmax
from regard.nn.multihead import MultiheadAttention

Activation = Callable[[Tensor], Tensor]


class _Layer(nn.Module):
    """What the two layers share: self-attention, the feed-forward part, norms before or after each, residuals.

    Modules have the names that torch's layers give them, so that a `state_dict` of those can be loaded.
    """

    guided: ClassVar[bool]  # whether there is a second attention, to a memory

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        affinity: Affinity | nn.Module = Dot(),  # noqa: B008  (immutable)
        map: Map = softmax,
    ) -> None:
        """Make the parts, with torch's initial values."""
        super().__init__()
        _check.share("dropout", dropout)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        options: dict[str, Any] = {"dropout": dropout, "bias": bias, "batch_first": batch_first, **place}
        self.self_attn = MultiheadAttention(d_model, nhead, affinity=affinity, map=map, **options)
        if self.guided:
            # What can be learned is learned by each attention for itself.
            affinity = copy.deepcopy(affinity) if isinstance(affinity, nn.Module) else affinity
            map = copy.deepcopy(map) if isinstance(map, nn.Module) else map
            self.multihead_attn = MultiheadAttention(d_model, nhead, affinity=affinity, map=map, **options)
        self.linear1 = nn.Linear(d_model, _check.count("dim_feedforward", dim_feedforward), bias=bias, **place)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias, **place)
        self.norm_first = norm_first
        self.activation = _activation(activation)
        for i in range(1, 4 if self.guided else 3):
            self.add_module(f"norm{i}", nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **place))
            self.add_module(f"dropout{i}", nn.Dropout(dropout))

    def _residual(self, x: Tensor, i: int, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x + part(norm(x)), or norm(x + part(x)), with the i-th norm and dropout."""
        norm, drop = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        y: Tensor = x + drop(part(norm(x))) if self.norm_first else norm(x + drop(part(x)))
        return y

    def _feed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return y

    def extra_repr(self) -> str:
        """Where the norms are."""
        return f"norm_first={self.norm_first}"


class TransformerEncoderLayer(_Layer):
    """Drop-in for `torch.nn.TransformerEncoderLayer` whose self-attention takes an affinity and a map.

    See `MultiheadAttention` for these two and for masks; the other arguments, their order and defaults, the parameters
    and the call are torch's. `norm_first` puts the norms before each part (pre-norm) and not after its residual. Stack
    layers with `torch.nn.TransformerEncoder(layer, n, enable_nested_tensor=False)`.

    >>> from regard import sparsemax
    >>> layer = TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True, norm_first=True, map=sparsemax)
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    guided = False

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Output like `src` (L, B, d_model); (B, L, d_model) with `batch_first`, (L, d_model) without a batch."""
        masks: dict[str, Any] = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        attention = _attending(self.self_attn, None, is_causal=is_causal, **masks)
        return self._residual(self._residual(src, 1, attention), 2, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Drop-in for `torch.nn.TransformerDecoderLayer` whose attentions take an affinity and a map.

    Self-attention on the target, attention of the target to a memory (guided attention), feed-forward. Arguments as
    in `TransformerEncoderLayer`; where the affinity or the map is a module, each attention has its own copy of it.

    >>> layer = TransformerDecoderLayer(16, 4, dim_feedforward=32, batch_first=True)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 9, 16), tgt_is_causal=True).shape
    torch.Size([2, 5, 16])
    """

    guided = True

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Output like `tgt` (L, B, d_model), with `memory` (Lk, B, d_model); (B, L, d_model) with `batch_first`."""
        x = self.within(tgt, tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        return self.feed(self.across(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))

    def within(
        self, tgt: Tensor, mask: Tensor | None = None, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The first part, self-attention alone: it does not depend on the memory, so several memories can share it."""
        masks: dict[str, Any] = {"attn_mask": mask, "key_padding_mask": key_padding_mask}
        return self._residual(tgt, 1, _attending(self.self_attn, None, is_causal=is_causal, **masks))

    def across(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The second part: attention to the memory. Who puts the parts together may take it first."""
        masks: dict[str, Any] = {"attn_mask": mask, "key_padding_mask": key_padding_mask}
        return self._residual(x, 2, _attending(self.multihead_attn, memory, is_causal=is_causal, **masks))

    def feed(self, x: Tensor) -> Tensor:
        """The last part: feed-forward."""
        return self._residual(x, 3, self._feed_forward)


def _attending(layer: MultiheadAttention, memory: Tensor | None, **masks: Any) -> Callable[[Tensor], Tensor]:
    """Attention to `memory`, or of x to itself, without weights in memory."""

    def attention(x: Tensor) -> Tensor:
        keys = x if memory is None else memory
        c: Tensor = layer(x, keys, keys, need_weights=False, **masks)[0]
        return c

    return attention


def _activation(given: str | Activation) -> Activation:
    named: dict[str, Activation] = {"relu": relu, "gelu": gelu}
    if isinstance(given, str):
        if given not in named:
            _check.complain("activation", repr(given), "'relu', 'gelu' or a function", "Pass the function itself.")
        return named[given]
    return given
