"""Which attentions of a model call regard: by the names in their code, and by the calls so far."""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import nn

PREFIX = "regard_"
#: Endings of class names with "Attention" in them that compute no weights.
PARTS = ("Output", "Norm", "Mask", "Gate", "Embeddings", "Encoding", "Bias", "DecoderLayer")


class Reach(NamedTuple):
    """Names of attention modules that call regard, and of those that compute weights by other code."""

    reached: list[str]
    missed: list[str]


def mark(module: nn.Module, heads: int) -> None:
    """Record on an attention that it has called regard, and its number of heads."""
    if not torch.compiler.is_compiling():
        module.__dict__["regard_heads"] = int(heads)


def want_weights(model: nn.Module, wanted: bool) -> None:
    """Tell every attention in `model` that its weights are wanted, or no longer."""
    for module in model.modules():
        if wanted:
            module.__dict__["regard_wanted"] = True
        else:
            module.__dict__.pop("regard_wanted", None)


def implementation(module: nn.Module, default: Any = None) -> str:
    """The attn_implementation in the configuration of a module, or in the configuration `default` if it has none."""
    config = getattr(module, "config", None)
    if not hasattr(config, "_attn_implementation"):
        config = default
    return getattr(config, "_attn_implementation", None) or ""


def reach(model: nn.Module) -> Reach:
    """Sort the attention modules of a model, in the order of registration."""
    result = Reach([], [])
    _walk("", model, None, result)
    return result


def _walk(name: str, module: nn.Module, config: Any, result: Reach) -> bool:
    """Add the attentions in `module` to `result`, depth first. True if there was one.

    `name`: of the module in the model.
    `module`: where to look.
    `config`: the nearest configuration above the module, or None.
    `result`: names so far, extended in place.
    """
    module_config = getattr(module, "config", None)
    config = module_config if hasattr(module_config, "_attn_implementation") else config
    if "regard_heads" in module.__dict__ or calls_interface(type(module)):
        (result.reached if implementation(module, config).startswith(PREFIX) else result.missed).append(name)
        return True
    inside = [
        _walk(f"{name}.{part}" if name else part, child, config, result) for part, child in module.named_children()
    ]
    if any(inside):
        return True
    kind = type(module).__name__
    attends = "attention" in kind.lower() and not kind.endswith(PARTS) and any(True for _ in module.parameters())
    if attends:
        result.missed.append(name)
    return attends


def calls_interface(cls: type) -> bool:
    """Whether the code of a class uses the interface through which transformers calls registered attentions."""
    return bool({"ALL_ATTENTION_FUNCTIONS", "get_interface"} & names_in(cls))


@functools.cache
def names_in(cls: type) -> frozenset[str]:
    """Every global or attribute name in the methods of a class, except those inherited from `PreTrainedModel`."""
    names: set[str] = set()
    for owner in cls.__mro__:
        if owner.__module__ in ("builtins", "torch.nn.modules.module", "transformers.modeling_utils"):
            continue
        for member in vars(owner).values():
            code = getattr(inspect.unwrap(member) if callable(member) else None, "__code__", None)
            names.update(code.co_names if code is not None else ())
    return frozenset(names)
