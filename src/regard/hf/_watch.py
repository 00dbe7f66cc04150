"""Warnings for models that take a name of regard, but compute attention by code of their own.

transformers accepts the name for every model. It calls `PreTrainedModel.get_correct_attn_implementation` when a model
is created or its attention changed: that one method is wrapped.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, NoReturn

import torch
from torch import nn

from regard import _check
from regard.hf import _alpha, _continuous, _masks
from regard.hf._reach import PREFIX, calls_interface, implementation, reach, want_weights


def install() -> None:
    """Wrap the method, if it is not wrapped yet."""
    from transformers import PreTrainedModel

    original = PreTrainedModel.get_correct_attn_implementation
    if hasattr(original, "of_regard"):
        return

    @functools.wraps(original)
    def wrapper(self: Any, requested_attention: str | None, is_init_check: bool = False, **keywords: Any) -> str:
        name: str = original(self, requested_attention, is_init_check, **keywords)
        _prepare(self, name, is_init_check)
        return name

    wrapper.of_regard = True  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = wrapper  # type: ignore[method-assign]


def _prepare(model: Any, name: str, is_new: bool) -> None:
    """Prepare a model for the attention `name`: after its modules are created, if it is new; else at once."""
    if name != "regard_entmax":
        _alpha.warn_if_dropped(model, name)
    if not name.startswith(PREFIX):
        return
    _refuse_classes(model, name)
    _masks.note(model)
    if is_new:
        model.__dict__["post_init"] = functools.partial(_finish, model, name)
    else:
        _watch(model, name)


def _finish(model: Any, name: str) -> None:
    """Take the place of `post_init` in one model: do what it does, then what needs the modules to be there."""
    del model.__dict__["post_init"]
    model.post_init()
    if name == "regard_entmax":
        _alpha.restore_alphas(model)
    _watch(model, name)


def _watch(model: nn.Module, name: str) -> None:
    """Warn once about the attentions in `model` that have code of their own, and add hooks around its forward pass."""
    if name in _continuous.DENSITIES:
        _continuous.follow_grids(model)
    if "regard_watched" not in model.__dict__:
        model.__dict__["regard_watched"] = True
        model.register_forward_pre_hook(_before, with_kwargs=True)
        model.register_forward_hook(_after)
    result = reach(model)
    modules = dict(model.named_modules())
    with_own_code = [name for name in result.missed if not calls_interface(type(modules[name]))]
    new = [name for name in with_own_code if "regard_warned" not in modules[name].__dict__]
    for name in new:
        modules[name].__dict__["regard_warned"] = True
    if new:
        classes = sorted({type(modules[name]).__name__ for name in new})
        subject = "Its attention is" if len(with_own_code) == sum(map(len, result)) else "Some of its attention is"
        warnings.warn(
            f"{type(model).__name__} does not call regard in {len(new)} modules ({', '.join(classes)}). {subject} "
            "computed by code of its own, as without regard; regard.hf.check(model) names the modules.",
            stacklevel=2,
        )


def _before(model: nn.Module, _: Any, keywords: dict[str, Any]) -> None:
    """Before each forward pass: not every model passes output_attentions on to its attentions."""
    if torch.compiler.is_compiling():
        return
    if model.__dict__.pop("regard_asked", False):  # the last pass has raised
        want_weights(model, False)
    if keywords.get("output_attentions") and "regard_wanted" not in model.__dict__:
        want_weights(model, True)
        model.__dict__["regard_asked"] = True


def _after(model: nn.Module, *_: Any) -> None:
    """After each forward pass; after the first, warn if nothing has called regard and there was no warning yet."""
    if torch.compiler.is_compiling():
        return
    if model.__dict__.pop("regard_asked", False):
        want_weights(model, False)
    if "regard_seen" in model.__dict__:
        return
    model.__dict__["regard_seen"] = True
    name = implementation(model)
    if not name.startswith(PREFIX) or any(
        {"regard_heads", "regard_warned"} & m.__dict__.keys() for m in model.modules()
    ):
        return
    model.__dict__["regard_warned"] = True
    warnings.warn(
        f"{type(model).__name__} did not call regard in its first forward pass, though its attn_implementation is "
        f"{name!r}: either it has no attention, or it computes it by code of its own.",
        stacklevel=2,
    )


def _refuse_classes(model: nn.Module, name: str) -> None:
    """In files that look up a class of attention by its name: register a function that raises under `name`."""
    for cls in type(model).__mro__:
        for attribute, classes in vars(sys.modules.get(cls.__module__, object)).items():
            if attribute.endswith("ATTENTION_CLASSES") and isinstance(classes, dict) and "eager" in classes:
                known = tuple(key for key in classes if not str(key).startswith(PREFIX))
                classes.setdefault(name, functools.partial(_refuse_model, type(model).__name__, name, known))


def _refuse_model(model: str, name: str, known: tuple[str, ...], *_: Any, **__: Any) -> NoReturn:
    _check.complain(
        "attn_implementation",
        f"{name!r} for {model}",
        "one of " + ", ".join(map(repr, known)),
        f"This model has classes of attention of its own, which call no other: load it with {known[0]!r}.",
    )
