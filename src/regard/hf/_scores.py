"""The weights behind one call of an attention: affinity, map, mask and bias as the model's own code has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard import _check
from regard.affinity import Dot, SoftCap
from regard.attention.lazy import LazyWeights
from regard.hf._attention import _learned_map, attention
from regard.hf._continuous import attend_grid
from regard.hf._masks import mask_and_bias
from regard.maps.entmax import Softmax
from regard.wasserstein.affinities import Distance

#: From an attention, its arguments and its keyword arguments to its weights (B, H, Lq, Lk).
Read = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], LazyWeights]


def weights_of_call(
    implementation: str, function: Any, module: nn.Module, made: Any, *given: Any, **keywords: Any
) -> LazyWeights | Tensor:
    """The weights (B, H, Lq, Lk) of one call: in memory, if the function has formed them, else as what makes them.

    `implementation`: the name of the attention function.
    `function`: itself.
    `module`: the attention that calls it.
    `made`: what it returned.
    `given`, `keywords`: its arguments after the module.
    """
    if getattr(function, "func", None) is attend_grid:
        weights: Tensor = function(module, *given, **keywords | {"output_attentions": True, "dropout": 0.0})[1]
        return weights
    if getattr(function, "func", None) is attention:
        affinity, map = function.args
        return _lazy(affinity, _learned_map(module) if map is None else map, False, module, *given, **keywords)
    formed = made[1] if isinstance(made, tuple) and len(made) > 1 else None
    if isinstance(formed, Tensor) and formed.dim() == 4:
        return formed
    if implementation != "sdpa" and "flash" not in implementation:
        expected = "eager, sdpa, a flash attention or one of regard's"
        remedy = 'Its weights cannot be known from outside: model.set_attn_implementation("sdpa").'
        _check.complain("attn_implementation", repr(implementation), expected, remedy)
    return _lazy(Dot, Softmax(), True, module, *given, **keywords)


def _lazy(
    make_affinity: Callable[[float], Any],
    map: Any,
    causal_by_default: bool,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> LazyWeights:
    """What makes the weights of a call.

    `make_affinity`, `map`: the affinity from `scaling`, and the map.
    `causal_by_default`: whether a module without a mask is causal unless it says otherwise, as in SDPA.
    Other arguments as transformers passes them.
    """
    if (cache := keywords.get("cache")) is not None:
        remedy = 'Watch it with model.set_attn_implementation("eager"), which forms its weights.'
        _check.complain("cache", type(cache).__name__, "None", remedy, NotImplementedError)
    queries, keys = query.shape[2], key.shape[2]
    if causal_by_default and is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    mask, bias, causal = None, None, bool(is_causal) and attention_mask is None
    if attention_mask is not None:
        if not isinstance(attention_mask, Tensor):
            remedy = 'Masks of flex attention are code: model.set_attn_implementation("sdpa").'
            _check.complain("attention_mask", type(attention_mask).__name__, "a tensor", remedy, TypeError)
        if attention_mask.dim() == 2:  # flash attention has a mask of keys, and is causal by itself
            causal, mask = bool(is_causal), attention_mask[:, None, None, :keys].bool()
        else:
            mask, bias, causal = mask_and_bias(attention_mask, queries, keys)
    causal = causal and queries > 1
    if causal and keys > queries:  # a cache of fixed size that is being filled
        key, keys = key[:, :, :queries], queries
        position_bias = None if position_bias is None else position_bias[..., :queries]
        mask = None if mask is None else mask[..., :queries]
    if indices is not None:
        chosen = torch.zeros(query.shape[0], queries, keys, dtype=torch.bool, device=query.device)
        chosen = chosen.scatter(-1, indices.long(), True)[:, None]
        mask = chosen if mask is None else mask & chosen
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    affinity = make_affinity(query.shape[-1] ** -0.5 if scaling is None else scaling)
    if isinstance(affinity, Distance):
        query, key = affinity.pack(query), affinity.pack(key)
    affinity = affinity if softcap is None else SoftCap(affinity, float(softcap))
    groups = query.shape[1] != key.shape[1]
    sink = None if s_aux is None else s_aux.reshape(-1, 1, 1).to(query.dtype)
    return LazyWeights(query, key, affinity, map, mask, causal=causal, bias=bias, sink=sink, enable_gqa=groups)


def multihead_weights(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> LazyWeights:
    """The weights of one call of `torch.nn.MultiheadAttention`, which some models use for pooling."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    arguments: dict[str, Any] = dict(zip(names, given, strict=False)) | keywords
    layer: Any = module
    query, key = arguments["query"], arguments["key"]
    if not layer.batch_first:
        query, key = (x.transpose(0, 1) for x in (query, key))
    if layer.bias_k is not None or layer.add_zero_attn:
        _check.complain("model", "a MultiheadAttention with keys of its own", "none", "Say its weights by read=.")
    width = layer.embed_dim
    if layer.in_proj_weight is None:
        w_q, w_k = layer.q_proj_weight, layer.k_proj_weight
    else:
        w_q, w_k = layer.in_proj_weight[:width], layer.in_proj_weight[width : 2 * width]
    bias = layer.in_proj_bias
    b_q, b_k = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])
    q, k = (
        linear(x, w, b).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for x, w, b in ((query, w_q, b_q), (key, w_k, b_k))
    )
    mask, added = None, None
    if (padding := arguments.get("key_padding_mask")) is not None:  # True leaves out, as in all masks of torch's module
        mask = ~padding[:, None, None, :] if padding.dtype == torch.bool else padding[:, None, None, :] == 0
    if (masked := arguments.get("attn_mask")) is not None:
        masked = masked.unflatten(0, (-1, layer.num_heads)) if masked.dim() == 3 else masked
        if masked.dtype == torch.bool:
            mask = ~masked if mask is None else mask & ~masked
        else:
            added = masked
    return LazyWeights(q, k, Dot(), Softmax(), mask, bias=added)
