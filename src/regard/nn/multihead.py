"""Multi-head attention with any affinity and any map, with the interface of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from regard import _check
from regard.affinity import Affinity, Dot
from regard.attention.arguments import Causal, Map
from regard.maps.entmax import Softmax, softmax
from regard.nn._heads import attend_heads, masks_of_torch
from regard.nn._nested import in_nested
from regard.nn.learned import check_affinity, held_map, name_of


class MultiheadAttention(nn.Module):
    """Drop-in for `torch.nn.MultiheadAttention` that takes an affinity and a map (docs/math.md, 4.1, in every head).

    The same arguments in the same order, the same call, the same masks (True leaves a key *out*, as in torch), the same
    return and the same parameters: it loads that module's `state_dict`, and with `Dot()` and `softmax` it gives the
    same numbers.

    `embed_dim`: width of queries and output.
    `num_heads`: a divisor of it.
    `dropout`: share of weights set to zero in training; default 0.
    `bias`: of all projections; default True.
    `add_bias_kv`: append a learned key and value to every sequence, which no mask leaves out; default False.
    `add_zero_attn`: append a key and value of zeros, which no mask leaves out; default False.
    `kdim`, `vdim`: widths of keys and values; default `embed_dim`.
    `batch_first`: inputs are (B, L, d), not (L, B, d); default False, as in torch.
    `device`, `dtype`: of the parameters; default torch's.
    `affinity`: any of regard's, or `Learned(...)` for one that holds tensors; a Wasserstein one makes its distributions
    from the features of a head, [mean, scale] in their two halves for `GaussianW2`; default `Dot()`.
    `map`: any map: `softmax` (default), `sparsemax`, `Entmax(1.5)`, `regard.nn.Entmax(num_heads)` with a learned alpha,
    a doubly stochastic `Sinkhorn()`.
    `add_sink`: learn a sink for every head (4.8), a key with a score, `sink` (H,), and no value, which no mask leaves
    out: weights then sum to less than one; default False. It starts at zero.

    `regard.explain_attend` says which algorithm computes it; with `need_weights` all weights are in memory. A query
    without any key gets weights of zero and the bias of the output projection, where torch gives NaN. The module can
    replace `self_attn` in torch's layers; their fast path for evaluation, which always computes softmax of the dot
    product, is taken only if that is what this module computes.

    >>> from regard import sparsemax
    >>> layer = MultiheadAttention(16, 4, batch_first=True, map=sparsemax)
    >>> x = torch.randn(2, 5, 16)
    >>> c, p = layer(x, x, x)
    >>> c.shape, p.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 5, 5]))
    >>> layer
    MultiheadAttention(
      embed_dim=16, num_heads=4, batch_first=True, affinity=Dot(scale=None), map=Sparsemax()
      (out_proj): Linear(in_features=16, out_features=16, bias=True)
    )
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        affinity: Affinity | nn.Module = Dot(),  # noqa: B008  (immutable)
        map: Map = softmax,
        add_sink: bool = False,
    ) -> None:
        """Create the projections, with torch's initial values."""
        super().__init__()
        self.embed_dim = _check.count("embed_dim", embed_dim)
        self.num_heads = _check.count("num_heads", num_heads)
        if embed_dim % num_heads:
            remedy = "Choose another number of heads."
            _check.complain("num_heads", num_heads, f"a divisor of embed_dim = {embed_dim}", remedy)
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else _check.count("kdim", kdim)
        self.vdim = embed_dim if vdim is None else _check.count("vdim", vdim)
        self.dropout = _check.share("dropout", dropout)
        self.batch_first = batch_first
        check_affinity(affinity)
        self.affinity = affinity
        self.map = held_map(map)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        packed = self.kdim == embed_dim and self.vdim == embed_dim
        self.in_proj_weight = parameter(3 * embed_dim, embed_dim) if packed else None
        self.q_proj_weight = None if packed else parameter(embed_dim, embed_dim)
        self.k_proj_weight = None if packed else parameter(embed_dim, self.kdim)
        self.v_proj_weight = None if packed else parameter(embed_dim, self.vdim)
        self.in_proj_bias = parameter(3 * embed_dim) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = parameter(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = parameter(1, 1, embed_dim) if add_bias_kv else None
        self.add_zero_attn = add_zero_attn
        self.sink = parameter(num_heads) if add_sink else None
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for row in (self.bias_k, self.bias_v):
            if row is not None:
                nn.init.xavier_normal_(row)
        if self.sink is not None:
            nn.init.zeros_(self.sink)

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """Whether torch's layers may take their fast path in evaluation: softmax, with `in_proj_weight`."""
        usual = isinstance(self.map, Softmax) and self.affinity == Dot() and self.sink is None
        return self.in_proj_weight is not None and usual

    def merge_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor
    ) -> tuple[Tensor | None, int | None]:
        """The masks in the form of torch's fused kernel; torch's layers call it."""
        merge: Any = nn.MultiheadAttention.merge_masks
        merged: tuple[Tensor | None, int | None] = merge(self, attn_mask, key_padding_mask, query)
        return merged

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output of the shape of `query`, and the weights, or None.

        `query`, `key`, `value`: (Lq, B, embed_dim), (Lk, B, kdim), (Lk, B, vdim); (B, L, ...) with `batch_first`;
        (L, ...) without a batch. All three may be nested tensors, with `batch_first` and without masks; the weights are
        then padded with zeros.
        `key_padding_mask`: (B, Lk), boolean, True where a key is left out, or a float that is added to the scores.
        `need_weights`: return the weights, which are then in memory; default True.
        `attn_mask`: (Lq, Lk) or (B * H, Lq, Lk), boolean or float as above.
        `average_attn_weights`: weights (B, Lq, Lk), averaged over heads, not (B, H, Lq, Lk); default True.
        `is_causal`: a hint, as in torch, that `attn_mask` is causal: the mask decides. Without `attn_mask` query i sees
        the keys 0 to i, where torch requires the mask too.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            self._check_nested()
            masked = key_padding_mask is not None or attn_mask is not None
            options = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
            return in_nested(self, query, key, value, masked, is_causal=is_causal, **options)
        self._check_inputs(query, key, value)
        q, k, v = (self._split(x) for x in self._project(query, key, value))
        mask, bias = masks_of_torch(key_padding_mask, attn_mask, torch.Size((*q.shape[:-1], k.shape[-2])))
        causal: Causal = "upper-left" if is_causal and attn_mask is None else False
        if self.bias_k is not None or self.add_zero_attn:
            k, v, mask, bias = self._with_extra_keys(k, v, mask, bias, q.shape[-2] if causal else None)
            causal = False
        c, p = attend_heads(
            q,
            k,
            v,
            self.affinity() if isinstance(self.affinity, nn.Module) else self.affinity,
            self.map,
            mask,
            causal=causal,
            bias=bias,
            sink=None if self.sink is None else self.sink[:, None, None],
            dropout=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        c = c.transpose(-3, -2) if self.batch_first or c.dim() == 3 else c.permute(2, 0, 1, 3)
        return self.out_proj(c.flatten(-2)), p.mean(-3) if p is not None and average_attn_weights else p

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the heads in self-attention, each (B, H, L, d), for x as `query` in `forward`."""
        q, k, v = (self._split(part) for part in self._project(x, x, x))
        return q, k, v

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, with one matrix product per distinct input."""
        weight, e = self.in_proj_weight, self.embed_dim
        bias: Tensor | None = self.in_proj_bias
        if bias is not None and bias.dtype != self.out_proj.weight.dtype:  # as torch, which adds it separately
            bias = bias.to(self.out_proj.weight.dtype)
        if weight is not None and query is key and key is value:
            return linear(query, weight, bias).chunk(3, -1)
        biases: tuple[Any, ...] = (None, None, None) if bias is None else bias.chunk(3)
        if weight is not None and key is value:
            keys_and_values = linear(key, weight[e:], None if bias is None else bias[e:])
            return linear(query, weight[:e], biases[0]), *keys_and_values.chunk(2, -1)
        weights: tuple[Any, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if weight is not None:
            weights = weight.chunk(3)
        return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))

    def _with_extra_keys(
        self, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, causal_queries: int | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Keys, values, mask and bias with the learned and the zero key appended, which every query sees.

        `k`, `v`: (..., H, Lk, d).
        `mask`, `bias`: broadcast to the scores, or None.
        `causal_queries`: the number of queries of a causal attention, for which a mask is made; else None.
        """
        if causal_queries is not None:
            allowed = torch.ones(causal_queries, k.shape[-2], dtype=torch.bool, device=k.device).tril()
            mask = allowed if mask is None else mask & allowed
        shape = (*k.shape[:-2], 1, self.head_dim)
        for row_k, row_v in ((self.bias_k, self.bias_v), (0.0, 0.0) if self.add_zero_attn else (None, None)):
            if row_k is not None and row_v is not None:
                k = torch.cat([k, _row(row_k, shape, k)], -2)
                v = torch.cat([v, _row(row_v, shape, v)], -2)
                mask = None if mask is None else pad(mask, (0, 1), value=True)
                bias = None if bias is None else pad(bias, (0, 1), value=0.0)
        return k, v, mask, bias

    def _split(self, x: Tensor) -> Tensor:
        """([B,] L, H * d), or (L, B, H * d) without batch_first, to ([B,] H, L, d)."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        return x.transpose(-3, -2) if self.batch_first or x.dim() == 3 else x.permute(1, 2, 0, 3)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        widths = {"query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)}
        for name, (x, width) in widths.items():
            _check.floating(name, x, min_dims=2)
            if x.dim() > 3 or x.dim() != query.dim():
                expected = "three axes, or two without a batch, as many as query"
                _check.complain(name, f"shape {tuple(x.shape)}", expected, "Flatten a grid of features to one axis.")
            if x.shape[-1] != width:
                remedy = "Set kdim or vdim where keys or values are wider than queries."
                _check.complain(name, f"width {x.shape[-1]}", f"{width}", remedy)
        batch = 0 if self.batch_first else 1
        if query.dim() == 3 and not query.shape[batch] == key.shape[batch] == value.shape[batch]:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, (x, _) in widths.items())
            _check.complain("query, key, value", shapes, f"one batch size on axis {batch}", "See batch_first.")
        length = 1 if self.batch_first and query.dim() == 3 else 0
        if key.shape[length] != value.shape[length]:
            expected = f"one for each of the {key.shape[length]} keys"
            _check.complain("value", f"{value.shape[length]} values", expected, f"Check axis {length}.")

    def _check_nested(self) -> None:
        if not self.batch_first:
            _check.complain("query", "a nested tensor", "batch_first=True for it", "A nested tensor is (B, L, d).")

    def extra_repr(self) -> str:
        """Sizes, and what is not a child module."""
        parts = [f"embed_dim={self.embed_dim}", f"num_heads={self.num_heads}"]
        parts += [f"{name}={getattr(self, name)}" for name in ("kdim", "vdim") if getattr(self, name) != self.embed_dim]
        switches = {"batch_first": self.batch_first, "add_bias_kv": self.bias_k is not None}
        switches |= {"add_zero_attn": self.add_zero_attn, "add_sink": self.sink is not None}
        parts += [f"{name}=True" for name, on in switches.items() if on]
        for name in ("affinity", "map"):
            part = getattr(self, name)
            if not isinstance(part, nn.Module):
                parts.append(f"{name}={name_of(part)}")
        if self.dropout:
            parts.append(f"dropout={self.dropout}")
        return ", ".join(parts)


def _row(value: Tensor | float, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """One more key or value for every sequence and head, from a parameter (1, 1, H * d) or a number."""
    if isinstance(value, Tensor):
        return value.view(shape[-3], 1, shape[-1]).to(like.dtype).expand(shape)
    return like.new_full(shape, value)
