"""Which attentions of a model call regard: by what their code names, and by the calls that were made."""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import nn

PREFIX = "regard_"
#: Parts of an attention that have its name and compute no weights.
PARTS = ("Output", "Norm", "Mask", "Gate", "Embeddings", "Encoding", "Bias", "DecoderLayer")


class Reach(NamedTuple):
    """Names of attentions that call regard, and of those that compute weights of their own."""

    reached: list[str]
    missed: list[str]


def mark(module: nn.Module, heads: int) -> None:
    """Remember that this attention has called regard, with so many heads."""
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
    """The attention that the configuration of a module names; that of `default` if it has none."""
    config = getattr(module, "config", None)
    if not hasattr(config, "_attn_implementation"):
        config = default
    return getattr(config, "_attn_implementation", None) or ""


def reach(model: nn.Module) -> Reach:
    """Look through the modules of a model, in the order of their names."""
    found = Reach([], [])
    _walk("", model, None, found)
    return found


def _walk(name: str, module: nn.Module, config: Any, found: Reach) -> bool:
    """Add `module` and what is inside of it. True if there was an attention."""
    own = getattr(module, "config", None)
    config = own if hasattr(own, "_attn_implementation") else config
    if "regard_heads" in module.__dict__ or calls_interface(type(module)):
        (found.reached if implementation(module, config).startswith(PREFIX) else found.missed).append(name)
        return True
    inside = [
        _walk(f"{name}.{part}" if name else part, child, config, found) for part, child in module.named_children()
    ]
    if any(inside):
        return True
    kind = type(module).__name__
    attends = "attention" in kind.lower() and not kind.endswith(PARTS) and any(True for _ in module.parameters())
    if attends:
        found.missed.append(name)
    return attends


def calls_interface(cls: type) -> bool:
    """Whether the code of a class names the interface through which transformers calls other attentions."""
    return bool({"ALL_ATTENTION_FUNCTIONS", "get_interface"} & names_in(cls))


@functools.cache
def names_in(cls: type) -> frozenset[str]:
    """Every name that the methods of a class use, but for those of the base of all models, which only chooses."""
    names: set[str] = set()
    for owner in cls.__mro__:
        if owner.__module__ in ("builtins", "torch.nn.modules.module", "transformers.modeling_utils"):
            continue
        for member in vars(owner).values():
            code = getattr(inspect.unwrap(member) if callable(member) else None, "__code__", None)
            names.update(code.co_names if code is not None else ())
    return frozenset(names)
