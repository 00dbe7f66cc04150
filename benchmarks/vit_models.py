"""Whole models with sparse attention inside against the same with softmax: time and peak memory.

A ViT-S/16 of transformers, built from its configuration with random weights: 12 layers, 6 heads, 197 tokens, 16
pictures; a training step is forward, backward and AdamW. And MCAN of the preset `small` with a layer on the picture
before, 64 questions on grids of 14 x 14 cells. `python -m benchmarks.vit_models --compile` adds the ViT under
torch.compile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import regard
import regard.hf
from benchmarks.harness import Row, peak_memory, peer, race, report
from regard.vqa.mcan import MCAN
from regard.vqa.settings import small

PICTURES, CLASSES = 16, 10
# Largest multiples of SDPA's time, in training and inference.
MOST = {"regard_sparsemax": (1.1, 1.15), "regard_entmax15": (1.1, 1.15), "regard_entmax": None}
QUESTIONS, SIDE, FEATURES, ANSWERS, WORDS = 64, 14, 256, 100, 100
COMPILED = 1.03  # of the time of the same model without torch.compile


def main() -> None:
    """MCAN, then the ViT if there is transformers; `--compile` in the arguments takes some minutes more."""
    print(f"native kernels: {regard.native_kernels()}")
    parts = [mcan_rows()] if peer("transformers") is None else [mcan_rows(), rows(compiled="--compile" in sys.argv)]
    report("vit_models", chain.from_iterable(parts))


def mcan_step(map: str) -> Callable[[], None]:
    """A training step of the question-answering model with a map inside its layers."""
    torch.manual_seed(0)
    settings = small(map=map, before=1, guided_first=True)
    model = MCAN(settings, vocabulary=WORDS, answers=ANSWERS, cells=(SIDE, SIDE), features=FEATURES)
    optimiser = torch.optim.Adam(model.parameters())
    features, targets = torch.randn(QUESTIONS, SIDE, SIDE, FEATURES), torch.rand(QUESTIONS, ANSWERS)
    words = torch.randint(1, WORDS, (QUESTIONS, settings.tokens))

    def step() -> None:
        optimiser.zero_grad()
        model.loss(model(features, words).scores, targets).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def mcan_rows() -> Iterator[Row]:
    softmax = mcan_step("softmax")
    for name in ("sparsemax", "entmax"):
        t = race({"ours": mcan_step(name), "softmax": softmax}, seconds=5, least=5)
        mine, theirs = t["ours"].median, t["softmax"].median
        promise, kept = "at most 1.1 times its time", mine <= 1.1 * theirs
        case = f"MCAN small, two layers, {name} inside, training step"
        yield Row(case, "ms", mine, "softmax inside", theirs, promise, kept)


def vit(attention: str) -> nn.Module:
    """ViT-S/16 at 224 with ten classes; learned alphas where the attention has them."""
    from transformers import AutoModelForImageClassification, ViTConfig

    regard.hf.register()
    torch.manual_seed(0)
    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=CLASSES)
    model: nn.Module = AutoModelForImageClassification.from_config(config, attn_implementation=attention)
    if attention == "regard_entmax":
        regard.hf.learn_alpha(model)
    return model


def training_step(
    model: nn.Module, forward: Callable[..., object], optimiser: torch.optim.Optimizer, x: Tensor
) -> None:
    """One step of AdamW on labels that are all the same, so that every model has the same work."""
    model.train()
    optimiser.zero_grad()
    logits: Tensor = forward(x).logits  # type: ignore[attr-defined]
    cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def inference(model: nn.Module, forward: Callable[..., object], x: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        forward(x)


def runs(attention: str, compiled: bool = False) -> tuple[Callable[[], None], Callable[[], None]]:
    """A training step and an inference of a model."""
    model, x = vit(attention), torch.randn(PICTURES, 3, 224, 224)
    forward: Callable[..., object] = torch.compile(model) if compiled else model
    optimiser = torch.optim.AdamW(model.parameters())
    return partial(training_step, model, forward, optimiser, x), partial(inference, model, forward, x)


def memory(attention: str) -> float:
    """MB that two training steps add to the peak of a process with the model in it."""
    setup = f"from benchmarks.vit_models import runs\nstep, _ = runs({attention!r})"
    return peak_memory(setup, "step()\nstep()")


def rows(compiled: bool) -> Iterator[Row]:
    sdpa = runs("sdpa")
    most_memory = memory("sdpa")
    for attention, most in MOST.items():
        ours = runs(attention)
        for i, what in enumerate(("training step", "inference")):
            t = race({"ours": ours[i], "sdpa": sdpa[i]}, seconds=8, least=5)
            mine, theirs = t["ours"].median, t["sdpa"].median
            promise = ("", None) if most is None else (f"at most {most[i]:g} times its time", mine <= most[i] * theirs)
            yield Row(f"ViT-S/16, {attention}, {what}", "ms", mine, "sdpa", theirs, *promise)
        mine = memory(attention)
        kept = mine <= 1.02 * most_memory
        yield Row(f"ViT-S/16, {attention}, memory of steps", "MB", mine, "sdpa", most_memory, "no more (2 %)", kept)
        if compiled:
            yield from compiled_rows(attention, ours)


def compiled_rows(attention: str, eager: tuple[Callable[[], None], Callable[[], None]]) -> Iterator[Row]:
    """The same model under torch.compile against itself."""
    ours = runs(attention, compiled=True)
    for i, what in enumerate(("training step", "inference")):
        t = race({"ours": ours[i], "eager": eager[i]}, seconds=8, least=5)
        mine, theirs = t["ours"].median, t["eager"].median
        promise, kept = f"at most {COMPILED:g} times its time", mine <= COMPILED * theirs
        yield Row(f"ViT-S/16, {attention}, compiled, {what}", "ms", mine, "not compiled", theirs, promise, kept)


if __name__ == "__main__":
    main()
