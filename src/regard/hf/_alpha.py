"""Learned alphas of the attentions of a "regard_entmax" model: creating, saving and restoring them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from regard import _check
from regard.hf._reach import implementation, reach
from regard.nn.learned import Entmax

#: Attributes under which modules and configurations of transformers store the number of heads.
HEADS = (
    "num_attention_heads",
    "num_heads",
    "n_heads",
    "n_head",
    "heads",
    "attention_heads",
    "encoder_attention_heads",
    "groups",
)


def learn_alpha(model: nn.Module, alpha: float = 1.5) -> list[str]:
    """Add one learned alpha per head to every attention of a "regard_entmax" model, and return the modules' names.

    Call it before creating the optimizer. The model's configuration records them under `regard_alpha`, so that they
    survive `save_pretrained` and `from_pretrained(..., attn_implementation="regard_entmax")`. Without this call alpha
    is 1.5 in every head, and is not learned. `alpha` is the initial value; default 1.5.

    >>> from transformers import AutoModel, BertConfig
    >>> import regard.hf
    >>> names = regard.hf.register()
    >>> config = BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=100)
    >>> model = AutoModel.from_config(config, attn_implementation="regard_entmax")
    >>> learn_alpha(model)
    ['encoder.layer.0.attention.self']
    """
    modules = dict(model.named_modules())
    names = [name for name in reach(model).reached if implementation(modules[name]) == "regard_entmax"]
    if not names:
        remedy = "Make it with attn_implementation='regard_entmax'; regard.hf.check(model) says what calls regard."
        _check.complain(
            "model", type(model).__name__, "a transformers model whose attentions call regard_entmax", remedy
        )
    heads = {name: _heads(name, modules[name]) for name in names}
    new = [name for name in names if not _has_alpha(modules[name])]
    for name in new:
        device = next(modules[name].parameters(), torch.empty(0)).device
        _add(modules[name], heads[name], alpha, device)
    _record(model, heads)
    return new


def restore_alphas(model: Any) -> None:
    """Make the alphas that the configuration of a new model names, so that weights can be loaded into them."""
    names: dict[str, int] = getattr(model.config, "regard_alpha", None) or {}
    modules = dict(model.named_modules())
    prefix = f"{model.base_model_prefix}."
    for name, heads in names.items():
        # A model may be saved with a task head and loaded without, or the other way round.
        for candidate in (name, name.removeprefix(prefix), prefix + name):
            if candidate in modules:
                if not _has_alpha(modules[candidate]):
                    _add(modules[candidate], heads, 1.5)
                break
    if any(_has_alpha(module) for module in modules.values()):
        model._keep_in_fp32_modules_strict = {*(model._keep_in_fp32_modules_strict or ()), "regard_map"}


def warn_if_dropped(model: Any, name: str) -> None:
    """Warn if a model with learned alphas gets another attention."""
    if getattr(model.config, "regard_alpha", None):
        warnings.warn(
            f"{type(model).__name__} has learned alphas, which {name!r} does not use: load it with "
            "attn_implementation='regard_entmax'.",
            stacklevel=2,
        )


def _has_alpha(module: nn.Module) -> bool:
    return isinstance(getattr(module, "regard_map", None), Entmax)


def _add(module: nn.Module, heads: int, alpha: float, device: torch.device | None = None) -> None:
    # In float32 whatever the dtype of the model: updates of alpha are below the resolution of bfloat16.
    module.regard_map = Entmax(heads, alpha).to(device, torch.float32)


def _heads(name: str, module: nn.Module) -> int:
    """The number of heads of an attention: from its calls so far, or from the usual attributes."""
    heads = module.__dict__.get("regard_heads")
    for owner in (module, getattr(module, "config", None)):
        for attribute in HEADS:
            if heads is None and isinstance(getattr(owner, attribute, None), int):
                heads = getattr(owner, attribute)
    if heads is None:
        remedy = "Run one forward pass first: then its heads are known."
        _check.complain(name, f"{type(module).__name__} with heads under an unusual name", "a number of heads", remedy)
    return int(heads)


def _record(model: nn.Module, heads: dict[str, int]) -> None:
    """Write the alphas into the configuration of the model and of each of its parts that can be saved alone."""
    seen: set[int] = set()
    for part, module in model.named_modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(module, "save_pretrained") or id(config) in seen:
            continue
        seen.add(id(config))
        prefix = f"{part}." if part else ""
        inside = {name.removeprefix(prefix): n for name, n in heads.items() if name.startswith(prefix)}
        if inside:
            config.regard_alpha = inside
