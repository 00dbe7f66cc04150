"""regard's attentions in Hugging Face models: `register()`, then `attn_implementation="regard_sparsemax"`.

Every model that takes its attention from transformers' `AttentionInterface` can use them: encoders, decoders with a
cache and grouped queries, vision models. Padding, causal and windowed masks come from the model's own mask code.

    regard_softmax      softmax, the model's own numbers
    regard_sparsemax    sparsemax
    regard_entmax15     entmax with alpha = 1.5
    regard_entmax       entmax with an alpha that each head learns: see `learn_alpha`
    regard_sinkhorn     doubly stochastic, for models that are not causal
    regard_w2           softmax of minus squared Wasserstein distances: heads are [mean, scale] of Gaussians
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import _check
from regard._plan import Map
from regard.affinity import Affinity, Dot
from regard.maps.simplex import entmax, softmax, sparsemax
from regard.maps.transport import Sinkhorn
from regard.nn._heads import attend_heads
from regard.nn.learned import Entmax
from regard.wasserstein.affinities import GaussianW2

__all__ = ["learn_alpha", "register"]

#: Arguments of attention functions that change the scores. Only an attention that knows them may take them.
UNKNOWN = ("softcap", "s_aux", "cache")


def register() -> tuple[str, ...]:
    """Make regard's attentions known to transformers under the names that it returns. Calling it again does no harm.

    >>> from transformers import AutoModel, BertConfig
    >>> register()
    ('regard_softmax', 'regard_sparsemax', 'regard_entmax15', 'regard_entmax', 'regard_sinkhorn', 'regard_w2')
    >>> config = BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=100)
    >>> model = AutoModel.from_config(config, attn_implementation="regard_sparsemax")
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError("regard.hf needs transformers >= 5: pip install 'regard[hf]'") from error
    dot: Callable[[float], Affinity] = Dot
    attentions: dict[str, tuple[Callable[[float], Affinity], Map | None]] = {
        "regard_softmax": (dot, softmax),
        "regard_sparsemax": (dot, sparsemax),
        "regard_entmax15": (dot, partial(entmax, alpha=1.5)),
        "regard_entmax": (dot, None),
        "regard_sinkhorn": (dot, Sinkhorn(iterations=100, tol=1e-3)),
        # -|q - k|^2 / tau holds the inner product 2 / tau times: this tau makes it that of the model.
        "regard_w2": (lambda scaling: GaussianW2(tau=2 / scaling), softmax),
    }
    for name, (affinity, map) in attentions.items():
        AttentionInterface.register(name, partial(_attention, affinity, map))
        AttentionMaskInterface.register(name, sdpa_mask)
    return tuple(attentions)


def learn_alpha(model: nn.Module, alpha: float = 1.5) -> list[str]:
    """Give every attention of a "regard_entmax" model one alpha a head to learn, and return the names of them.

    Call it before the optimiser is made and before a trained `state_dict` is loaded (`from_pretrained` makes the model
    itself, so it knows no alphas and reports those of a file as unexpected). In a model without it the alphas are made
    in the first forward pass, which is too late for either.

    >>> from transformers import AutoModel, BertConfig
    >>> names = register()
    >>> config = BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=100)
    >>> model = AutoModel.from_config(config, attn_implementation="regard_entmax")
    >>> learn_alpha(model)
    ['encoder.layer.0.attention.self']
    """
    made = []
    for name, module in list(model.named_modules()):
        heads = _heads(module)
        if heads and not isinstance(getattr(module, "regard_map", None), Entmax):
            _add_alpha(module, heads, alpha, next(module.parameters()))
            made.append(name)
    if not made and not any(isinstance(m, Entmax) for m in model.modules()):
        remedy = "Add regard.nn.Entmax(heads) as `regard_map` to its attentions."
        _check.complain("model", type(model).__name__, "a transformers model with attentions", remedy)
    return made


def _heads(module: nn.Module) -> int:
    """How many heads an attention of transformers has; zero for any other module."""
    config = getattr(module, "config", None)
    if not hasattr(module, "is_causal") or config is None:
        return 0
    for owner in (module, config):
        for name in ("num_attention_heads", "num_heads", "n_heads"):
            heads = getattr(owner, name, None)
            if isinstance(heads, int):
                return heads
    return 0


def _add_alpha(module: nn.Module, heads: int, alpha: float, like: Tensor) -> Entmax:
    # In float32 whatever the model is in: an alpha moves by less than bfloat16 can tell apart.
    module.regard_map = Entmax(heads, alpha).to(like.device)
    return module.regard_map


def _learned_map(module: nn.Module, query: Tensor) -> Map:
    map = getattr(module, "regard_map", None)
    if isinstance(map, Entmax):
        return map
    if module.training and torch.is_grad_enabled():
        warnings.warn(
            "regard_entmax made its alphas in the first forward pass: an optimiser made before does not know them. "
            "Call regard.hf.learn_alpha(model) right after making the model.",
            stacklevel=2,
        )
    return _add_alpha(module, query.shape[1], 1.5, query)


def _attention(
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
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function as transformers calls it: queries (B, H, Lq, d), keys and values (B, H / groups, Lk, d).

    Returns (B, Lq, H, d), and weights (B, H, Lq, Lk) if the call asks for attentions. `attention_mask` is boolean with
    True where a key takes part, or a float that is added to the scores. Without one, `is_causal` of the call or of the
    module decides, and queries are the first ones of the keys, as they are when a cache of fixed size is filled.
    """
    for name in UNKNOWN:
        if keywords.get(name) is not None:
            remedy = "This model needs an attention of its own; load it with attn_implementation='eager'."
            _check.complain(name, type(keywords[name]).__name__, "None", remedy, NotImplementedError)
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    if causal and getattr(map, "couples_rows", False):
        remedy = "Its rows depend on later ones; take regard_softmax, regard_sparsemax or regard_entmax15."
        _check.complain("attn_implementation", "'regard_sinkhorn' in a causal model", "one that is not", remedy)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    length = query.shape[2]
    causal = bool(causal) and attention_mask is None and length > 1
    if causal and key.shape[2] > length:
        key, value = key[:, :, :length], value[:, :, :length]
    mask, bias = None, position_bias
    if attention_mask is not None:
        given = attention_mask[..., : key.shape[2]]
        if given.dtype == torch.bool:
            mask = given
        else:
            bias = given if bias is None else bias + given
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    wanted = keywords.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False)
    c, p = attend_heads(
        query,
        key,
        value,
        affinity(scaling),
        _learned_map(module, query) if map is None else map,
        mask,
        causal=causal,
        bias=bias,
        dropout=dropout,
        need_weights=bool(wanted),
    )
    return c.transpose(1, 2).contiguous(), p
