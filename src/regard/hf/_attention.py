"""The attention functions that transformers calls by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import _check
from regard.affinity import Affinity, Dot, SoftCap
from regard.attention.arguments import Map
from regard.hf._masks import mask_and_bias, sigmoid_bias
from regard.hf._reach import mark
from regard.maps.entmax import Entmax, Softmax, Sparsemax
from regard.maps.gates import Gate
from regard.maps.sinkhorn import Sinkhorn
from regard.nn._heads import attend_heads
from regard.nn.learned import Entmax as LearnedEntmax
from regard.wasserstein.affinities import GaussianW2

#: Arguments of attention functions that change the result and that regard does not implement.
UNKNOWN = ("cache", "block_indices")


def attentions() -> dict[str, Callable[..., tuple[Tensor, Tensor | None]]]:
    """Every attention function by its name."""
    dot: Callable[[float], Affinity] = Dot
    parts: dict[str, tuple[Callable[[float], Affinity], Map | None]] = {
        "regard_softmax": (dot, Softmax()),
        "regard_sparsemax": (dot, Sparsemax()),
        "regard_entmax15": (dot, Entmax(1.5)),
        "regard_entmax": (dot, None),
        "regard_sigmoid": (dot, Gate()),
        "regard_sinkhorn": (dot, Sinkhorn(iterations=100, tol=1e-3)),
        # -|q - k|^2 / tau contains 2 / tau times the inner product: this tau gives it the scale of the model.
        "regard_w2": (lambda scaling: GaussianW2(tau=2 / scaling), Softmax()),
    }
    return {
        name: partial(attention, affinity, map, recorder=output_recorder()) for name, (affinity, map) in parts.items()
    }


def output_recorder() -> Any:
    """What knows the outputs that a caller of a model of transformers wants; None in an older release, whose models
    pass output_attentions to the attention."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return None
    return _active_collector


def refuse_unknown(keywords: dict[str, Any], also: tuple[str, ...] = ()) -> None:
    """Refuse arguments of an attention function that change its result in a way that regard does not implement.

    `keywords`: the arguments.
    `also`: names that this attention function does not implement, beside `UNKNOWN`; default none.
    """
    for name in UNKNOWN + also:
        if keywords.get(name) is not None:
            remedy = "This model needs an attention of its own; load it with attn_implementation='eager'."
            _check.complain(name, type(keywords[name]).__name__, "None", remedy, NotImplementedError)


def attention(
    affinity: Callable[[float], Affinity],
    map: Map | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    recorder: Any = None,
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function as transformers calls it: (B, Lq, H, d), and weights (B, H, Lq, Lk) if requested.

    `affinity`: makes the affinity from `scaling`.
    `map`: any map; None takes the one that the module learns (`learn_alpha`).
    `module`: the attention of the model.
    `query`: (B, H, Lq, d).
    `key`, `value`: (B, H / groups, Lk, d).
    `attention_mask`: boolean, True where a key takes part, or a float that is added to the scores. With None every key
    takes part, as in eager attention, unless `is_causal`.
    `dropout`: share of weights set to zero; default 0.
    `scaling`: of the inner products; default 1/sqrt(d).
    `is_causal`: used without a mask; the queries are then at the first positions of the keys, as when a cache of fixed
    size is filled.
    `position_bias`: added to the scores; default None.
    `indices`: the only keys that a query may see, where the model selects them, (B, Lq, n); default None.
    `softcap`: bound of the scores before biases, cap * tanh(s / cap); default None.
    `s_aux`: scores of sinks, one per head, (H,): keys without a value; default None.
    `recorder`: transformers' own, which knows the requested outputs; default None.
    `keywords`: further arguments of transformers; those in `UNKNOWN` must be None.
    """
    mark(module, query.shape[1])
    refuse_unknown(keywords)
    mask, bias, causal = None, None, bool(is_causal)
    if attention_mask is not None:
        mask, bias, causal = mask_and_bias(attention_mask, query.shape[2], key.shape[2])
    if (causal or getattr(module, "is_causal", False)) and getattr(map, "couples_rows", False):
        remedy = "Its rows depend on later ones; take regard_softmax, regard_sparsemax or regard_entmax15."
        _check.complain("attn_implementation", "'regard_sinkhorn' in a causal model", "one that is not", remedy)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    length = query.shape[2]
    causal = causal and length > 1
    if causal and key.shape[2] > length:
        key, value = key[:, :, :length], value[:, :, :length]
    if indices is not None:
        chosen = torch.zeros(query.shape[0], length, key.shape[2], dtype=torch.bool, device=query.device)
        chosen = chosen.scatter(-1, indices.long(), True)[:, None]
        mask = chosen if mask is None else mask & chosen
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if isinstance(map, Gate):
        few = sigmoid_bias(mask, causal, length, key.shape[2], query)
        bias = few if bias is None else bias + few
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scored = affinity(scaling) if softcap is None else SoftCap(affinity(scaling), float(softcap))
    c, p = attend_heads(
        query,
        key,
        value,
        scored,
        _learned_map(module) if map is None else map,
        mask,
        causal=causal,
        bias=bias,
        sink=None if s_aux is None else s_aux.reshape(-1, 1, 1),
        dropout=dropout,
        need_weights=weights_wanted(module, keywords, recorder),
    )
    return c.transpose(1, 2).contiguous(), p


def weights_wanted(module: nn.Module, keywords: dict[str, Any], recorder: Any) -> bool:
    """Whether weights are requested: by the model's caller, the configuration, or transformers' recorder."""
    if keywords.get("output_attentions") or "regard_wanted" in module.__dict__:
        return True
    if getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    if recorder is None or (torch.compiler.is_compiling() and not recorder.compiling):
        return False  # the recorder is missing or cannot be read
    return any("attentions" in name for name in recorder.get() or ())


def _learned_map(module: nn.Module) -> Map:
    map = getattr(module, "regard_map", None)
    if isinstance(map, LearnedEntmax):
        return map
    if getattr(getattr(module, "config", None), "regard_alpha", None):
        remedy = "Load the model by the class that it was saved by, after regard.hf.register()."
        got = f"no alphas in {type(module).__name__}"
        _check.complain("model", got, "those that its configuration names", remedy)
    if module.training and torch.is_grad_enabled():
        warnings.warn(
            "regard_entmax has no alphas to learn: alpha is 1.5 in every head. "
            "Call regard.hf.learn_alpha(model) before the optimiser is made.",
            stacklevel=2,
        )
    return Entmax(1.5)
