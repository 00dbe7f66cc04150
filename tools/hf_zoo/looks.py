"""What is looked at in a model with regard's attention, beside the same model with its own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

import regard.hf
from tools.hf_zoo.compare import UNSEEN, Verdict, difference, distance, kept, places, pooled, run, tensors
from tools.hf_zoo.models import make, twin
from tools.hf_zoo.special import WITHOUT_SINKS


@contextmanager
def probed(name: str) -> Iterator[list[tuple[nn.Module, float]]]:
    """While it is open, each call of an attention adds its module and the share of zeros in its weights.

    Scores are made larger: with those of random weights sparsemax may well need every key.
    """
    original = AttentionInterface._global_mapping[name]
    calls: list[tuple[nn.Module, float]] = []

    def probe(module: nn.Module, query: Tensor, *args: Any, **keywords: Any) -> Any:
        c, p = original(module, 8 * query, *args, **keywords | {"output_attentions": True})
        calls.append((module, float((p == 0).float().mean())))
        return c, p

    AttentionInterface.register(name, probe)
    try:
        yield calls
    finally:
        AttentionInterface.register(name, original)


def look_at_sparsity(found: Verdict, eager: nn.Module, config: Any, given: Any, reach: Any, told: bool) -> None:
    """Sparsemax leaves weights at zero that softmax does not, wherever regard is called; or somebody says so."""
    zeros = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("regard_softmax", "regard_sparsemax"):
            model = twin(eager, config, name)
            with probed(name) as calls:
                run(model, given)
            zeros[name] = sum(share for _, share in calls)
    names = {id(module): name for name, module in model.named_modules()}
    unknown = {names.get(id(module), "?") for module, _ in calls} - set(reach.reached)
    if unknown:
        found.wrong.append(f"check does not know {sorted(unknown)[0]}")
    if calls:
        found.verdict = "works" if not found.missed else "works in part"
        if zeros["regard_sparsemax"] <= zeros["regard_softmax"]:
            found.wrong.append("regard_sparsemax: no weight is zero")
    else:
        found.verdict = "not reached" if found.missed else "no call"
    if not told and (found.missed or not calls):
        found.wrong.append("nobody said that regard is not called")


def change(model: nn.Module, given: Any, name: str, where: Tensor, keep: Tensor | None) -> float:
    """How much outputs change at the places `keep` (all, if None) when the tokens at the places `where` do."""
    other = given[name].clone()
    other[where] = (other[where] + 7) % 40 + 5
    before, after = run(model, given), run(model, {**given, name: other})
    return max(map(distance, kept(before, keep), kept(after, keep)), default=0.0)


def compare_changes(found: Verdict, what: str, theirs: float, ours: float) -> str:
    """Ours must not change where the model's own does not."""
    if theirs > UNSEEN:
        return "seen"
    if ours > UNSEEN:
        found.wrong.append(f"{what}: changes by {ours:.1e}, eager by {theirs:.1e}")
        return "leaks"
    return "unseen"


def look_at_time(found: Verdict, eager: nn.Module, ours: nn.Module, given: dict[str, Any]) -> None:
    """Whether the last token changes earlier outputs."""
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    last = torch.zeros_like(given[name], dtype=torch.bool)
    last[:, -1] = True
    theirs, mine = (change(model, given, name, last, ~last) for model in (eager, ours))
    found.causal = compare_changes(found, "the last token", theirs, mine)


def look_at_padding(found: Verdict, eager: nn.Module, ours: nn.Module, given: dict[str, Any]) -> None:
    """Whether padded tokens change the outputs of the others, padded on the right and on the left."""
    seen = set()
    for side in (slice(-3, None), slice(None, 3)):
        padded = torch.zeros_like(given["input_ids"], dtype=torch.bool)
        padded[0, side] = True
        with_mask = {**given, "attention_mask": (~padded).long()}
        keep = None if "decoder_input_ids" in given else ~padded
        try:
            theirs = change(eager, with_mask, "input_ids", padded, keep)
            expected = run(eager, with_mask)
        except TimeoutError:
            raise
        except Exception:
            continue
        seen.add(compare_changes(found, "padding", theirs, change(ours, with_mask, "input_ids", padded, keep)))
        both = (expected, run(ours, with_mask))
        difference(found, "with padding", *(kept(out, keep) or pooled(out) for out in both))
    found.padding = "/".join(sorted(seen))


def look_at_attentions(found: Verdict, eager: nn.Module, ours: nn.Module, given: dict[str, Any]) -> None:
    """Weights are returned wherever eager attention returns them."""
    try:
        expected = run(eager, given, output_attentions=True)
    except (TypeError, ValueError, AttributeError):
        return
    got = run(ours, given, output_attentions=True)
    names = [name for name in getattr(expected, "keys", list)() if "attention" in name and tensors(expected[name])]
    for name in names:
        weights = got.get(name)
        if found.type in WITHOUT_SINKS:
            weights = [p / p.sum(-1, keepdim=True) for p in tensors(weights)]
        difference(found, name, expected[name], weights)
    found.attentions = "given" if names else ""


def look_at_alphas(found: Verdict, eager: nn.Module, config: Any, given: dict[str, Any]) -> None:
    """Every attention that calls regard gets its alphas, before a forward pass or after one."""
    model = make(type(eager), copy.deepcopy(config), "regard_entmax")
    try:
        names = regard.hf.learn_alpha(model)
        found.alphas = "found"
    except ValueError as error:
        if "forward pass first" not in str(error):
            raise
        run(model, given)
        names = regard.hf.learn_alpha(model)
        found.alphas = "found after a pass"
    if names != regard.hf.check(model).reached:
        found.wrong.append(f"learn_alpha: {len(names)} of {found.reached} attentions")
    run(model, given)


def look_at_cache(found: Verdict, eager: nn.Module, ours: nn.Module, given: dict[str, Any]) -> None:
    """The last token after the others, which stay in a cache."""
    steps = []
    for model in (eager, ours):
        try:
            first = run(model, {"input_ids": given["input_ids"][:, :-1]}, use_cache=True)
            cache = first["past_key_values"]
            steps.append(run(model, {"input_ids": given["input_ids"][:, -1:]}, past_key_values=cache, use_cache=True))
        except TimeoutError:
            raise
        except Exception:
            if model is eager:
                return
            raise
    difference(found, "with a cache", *(places(step, 1) for step in steps))
    found.cache = "same"
