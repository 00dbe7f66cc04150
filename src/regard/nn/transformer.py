"""Transformer layers with any affinity and any map, with the interface of torch's."""

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
from regard.maps.entmax import Softmax, softmax
from regard.nn.learned import held_map
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
        self_attention: nn.Module | None = None,
    ) -> None:
        """Create the parts, with torch's initial values."""
        super().__init__()
        _check.share("dropout", dropout)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        options: dict[str, Any] = {"dropout": dropout, "bias": bias, "batch_first": batch_first, **factory}
        self.self_attn: nn.Module
        if self_attention is None:
            self.self_attn = MultiheadAttention(d_model, nhead, affinity=affinity, map=map, **options)
        else:
            self._check_given(self_attention, nhead, batch_first, affinity, map)
            self.self_attn = self_attention
        self.given = self_attention is not None
        if self.guided:
            # Each attention has its own learnable parameters.
            affinity = copy.deepcopy(affinity) if isinstance(affinity, nn.Module) else affinity
            map = copy.deepcopy(map) if isinstance(map, nn.Module) else map
            self.multihead_attn = MultiheadAttention(d_model, nhead, affinity=affinity, map=map, **options)
        self.linear1 = nn.Linear(d_model, _check.count("dim_feedforward", dim_feedforward), bias=bias, **factory)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias, **factory)
        self.norm_first = norm_first
        self.activation = _activation(activation)
        for i in range(1, 4 if self.guided else 3):
            self.add_module(f"norm{i}", nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory))
            self.add_module(f"dropout{i}", nn.Dropout(dropout))

    def _check_given(
        self, module: nn.Module, nhead: int, batch_first: bool, affinity: Affinity | nn.Module, map: Map
    ) -> None:
        """Check that nothing that the caller said is ignored because of a module in place of self-attention."""
        if not isinstance(module, nn.Module):
            remedy = "For example ContinuousSelfAttention(d_model, nhead, (14, 14))."
            _check.complain("self_attention", type(module).__name__, "a module", remedy, TypeError)
        if not batch_first:
            _check.complain("self_attention", "a module", "batch_first=True with it", "It takes (B, L, d_model).")
        if (heads := getattr(module, "heads", nhead)) != nhead:
            _check.complain("nhead", nhead, f"{heads}, the heads of self_attention", "Make both with one number.")
        if not self.guided and (affinity != Dot() or held_map(map) != Softmax()):
            remedy = "Leave the affinity and the map out: the module has its own."
            _check.complain("self_attention", type(module).__name__, "Dot() and softmax beside it", remedy)

    def _self_attention(self, **masks: Any) -> Callable[[Tensor], Tensor]:
        """Self-attention by the layer's own module, or by the one that it was given."""
        if not self.given:
            return _attending(self.self_attn, None, **masks)
        padding, kind = masks["key_padding_mask"], type(self.self_attn).__name__
        if masks["attn_mask"] is not None or masks["is_causal"]:
            remedy = "Pass key_padding_mask, or a layer without self_attention."
            _check.complain("mask", "a mask of queries and keys", f"None: {kind} takes one of keys only", remedy)
        if padding is not None and padding.dtype != torch.bool:
            remedy = "Use .bool(); True leaves a key out, as in torch."
            _check.complain("key_padding_mask", padding.dtype, f"a boolean mask for {kind}", remedy, TypeError)
        return lambda x: self.self_attn(x, None if padding is None else ~padding)

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

    Arguments, their order and defaults, parameters and the call are torch's; see `MultiheadAttention` for masks. Stack
    layers with `torch.nn.TransformerEncoder(layer, n, enable_nested_tensor=False)`.

    `d_model`: width of inputs and output.
    `nhead`: heads, a divisor of it.
    `dim_feedforward`: hidden units of the feed-forward part; default 2048.
    `dropout`: in all parts; default 0.1.
    `activation`: "relu" (default), "gelu" or a function.
    `layer_norm_eps`: added to the variance in the norms; default 1e-5.
    `batch_first`: inputs are (B, L, d_model), not (L, B, d_model); default False.
    `norm_first`: norms before each part (pre-norm), not after its residual; default False.
    `bias`: of linear layers and norms; default True.
    `device`, `dtype`: of the parameters; default torch's.
    `affinity`, `map`: as in `MultiheadAttention`; default `Dot()` and `softmax`.
    `self_attention`: a module in place of the layer's self-attention, called with (B, L, d_model) and a mask (B, L) or
    None, True = takes part: `ContinuousSelfAttention(d_model, nhead, (14, 14))`; needs `batch_first`, and takes no mask
    of queries and keys. Its dropout, bias, device and dtype are its own; default None.

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
        """Output of the shape of `src`.

        `src`: (L, B, d_model); (B, L, d_model) with `batch_first`, (L, d_model) without a batch.
        `src_mask`: the `attn_mask` of self-attention.
        `src_key_padding_mask`: its `key_padding_mask`.
        `is_causal`: as in `MultiheadAttention`; default False.
        """
        masks: dict[str, Any] = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        attention = self._self_attention(is_causal=is_causal, **masks)
        return self._residual(self._residual(src, 1, attention), 2, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Drop-in for `torch.nn.TransformerDecoderLayer` whose attentions take an affinity and a map.

    Self-attention on the target, attention of the target to a memory (cross- or guided attention), feed-forward.
    Arguments as in `TransformerEncoderLayer`; an affinity or a map that is a module is copied for the second attention,
    and with `self_attention` the affinity and the map are those of the attention to the memory alone.

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
        """Output of the shape of `tgt`.

        `tgt`: (L, B, d_model); (B, L, d_model) with `batch_first`.
        `memory`: (Lk, B, d_model), or (B, Lk, d_model).
        `tgt_mask`, `tgt_key_padding_mask`, `tgt_is_causal`: of self-attention, as in `MultiheadAttention`.
        `memory_mask`, `memory_key_padding_mask`, `memory_is_causal`: of the attention to the memory.
        """
        x = self.within(tgt, tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        return self.feed(self.across(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))

    def within(
        self, tgt: Tensor, mask: Tensor | None = None, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The first part, self-attention: independent of the memory, so that several memories can share its result.

        `tgt`: as in `forward`.
        `mask`, `key_padding_mask`, `is_causal`: as in `MultiheadAttention`.
        """
        masks: dict[str, Any] = {"attn_mask": mask, "key_padding_mask": key_padding_mask}
        return self._residual(tgt, 1, self._self_attention(is_causal=is_causal, **masks))

    def across(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The second part, attention to the memory; a caller that composes the parts may run it first.

        `x`: queries, as `tgt` in `forward`.
        `memory`: as in `forward`.
        `mask`, `key_padding_mask`, `is_causal`: as in `MultiheadAttention`.
        """
        masks: dict[str, Any] = {"attn_mask": mask, "key_padding_mask": key_padding_mask}
        return self._residual(x, 2, _attending(self.multihead_attn, memory, is_causal=is_causal, **masks))

    def feed(self, x: Tensor) -> Tensor:
        """The last part: feed-forward."""
        return self._residual(x, 3, self._feed_forward)


def _attending(layer: nn.Module, memory: Tensor | None, **masks: Any) -> Callable[[Tensor], Tensor]:
    """Attention to `memory`, or self-attention if that is None, without materialising the weights."""

    def attention(x: Tensor) -> Tensor:
        keys = x if memory is None else memory
        c: Tensor = layer(x, keys, keys, need_weights=False, **masks)[0]
        return c

    return attention


def _activation(activation: str | Activation) -> Activation:
    """The function of a name, or the function itself."""
    functions: dict[str, Activation] = {"relu": relu, "gelu": gelu}
    if isinstance(activation, str):
        if activation not in functions:
            _check.complain("activation", repr(activation), "'relu', 'gelu' or a function", "Pass the function itself.")
        return functions[activation]
    return activation
