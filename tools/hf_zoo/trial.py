"""One architecture tried: regard's attention in a tiny model of it against the model's own."""

from __future__ import annotations

import copy
import signal
import warnings
from typing import Any

import torch
from torch import nn

import regard.hf
from tools.hf_zoo import looks
from tools.hf_zoo.compare import Verdict, difference, run, tensors, without_weights
from tools.hf_zoo.given import GIVEN
from tools.hf_zoo.inputs import candidates
from tools.hf_zoo.models import LARGEST, classes_of, make, twin
from tools.hf_zoo.shrink import tiny
from tools.hf_zoo.special import MISREAD

SECONDS = 120


def try_model(model_type: str, **settings: Any) -> Verdict:
    """Build a tiny model three times with the same weights, and compare."""
    found = Verdict(model_type)

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _compare(found, settings)
    finally:
        signal.alarm(0)
    return found


def _compare(found: Verdict, settings: dict[str, Any]) -> None:
    try:
        config, eager, given = working(found, settings)
        eager = reference(eager, config, found.type)
    except Exception as error:
        found.verdict, found.reason = "not built", words(error)
        return
    expected = run(eager, given)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            ours = twin(eager, config, "regard_softmax")
            got = run(ours, given)
        except (ValueError, NotImplementedError) as error:
            if "expected" not in str(error):
                raise
            found.verdict, found.reason = "refused", str(error)
            return
        told = [str(w.message) for w in said if "regard" in str(w.message)]
    reach = regard.hf.check(ours)
    found.missed, found.reached = sorted({kind(ours, name) for name in reach.missed}), len(reach.reached)
    found.error = difference(found, "regard_softmax", without_weights(expected), without_weights(got))
    looks.look_at_sparsity(found, eager, config, given, reach, bool(told))
    if "input_ids" in given:
        looks.look_at_time(found, eager, ours, given)
        looks.look_at_padding(found, eager, ours, given)
    if set(given) == {"input_ids"}:
        looks.look_at_cache(found, eager, ours, given)
    looks.look_at_attentions(found, eager, ours, given)
    if found.reached:
        looks.look_at_alphas(found, eager, config, given)


def working(found: Verdict, settings: dict[str, Any]) -> tuple[Any, nn.Module, dict[str, Any]]:
    """A configuration, its model with eager attention, and inputs that it takes: of the first class that works."""
    config = tiny(found.type, **settings)
    problem: Exception = LookupError("no class of its own: part of another model")
    for cls in classes_of(found.type, config):
        try:
            model, given = attempt(cls, config)
        except TimeoutError:
            raise
        except Exception as error:
            problem = problem if found.model else error
            found.model = found.model or cls.__name__
        else:
            found.model = cls.__name__
            return config, model, given
    raise problem


def reference(model: nn.Module, config: Any, model_type: str) -> nn.Module:
    """The model whose numbers are right: with eager attention, but for the few where that one misreads a mask."""
    return twin(model, config, MISREAD[model_type]) if model_type in MISREAD else model


def attempt(cls: Any, config: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A model of this class, and inputs that it takes; or the first error."""
    with torch.device("meta"):
        try:
            sizes = [x.numel() for x in make(cls, copy.deepcopy(config), "eager").parameters()]
        except Exception:
            sizes = [0]
    if sum(sizes) > LARGEST:
        raise MemoryError(f"{sum(sizes) / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = make(cls, copy.deepcopy(config), "eager")
    with torch.no_grad():
        for x in model.parameters():
            if x.is_floating_point() and (x.dim() >= 2 or not x.any()):
                x.normal_(std=0.7 * x[0].numel() ** -0.5 if x.dim() >= 2 else 0.3)
    problem: Exception | None = None
    own = GIVEN.get(config.model_type)
    for given in [own(config)] if own else candidates(model, config):
        try:
            if tensors(run(model, given)):
                return model, given
        except TimeoutError:
            raise
        except Exception as error:
            problem = problem or error
    raise problem or LookupError("no inputs")


def kind(model: nn.Module, name: str) -> str:
    """The class of a module."""
    return type(model.get_submodule(name)).__name__


def words(error: Exception) -> str:
    """An error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
