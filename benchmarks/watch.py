"""Watching a ViT at 4,096 and 16,384 tokens against its plain pass: one layer of ViT-B under SDPA, memory and time."""

import time
from collections.abc import Iterator
from itertools import chain

from benchmarks.harness import Row, peak_memory, report

SETUP = """
import torch, regard.hf
from transformers import AutoModel, ViTConfig
torch.manual_seed(0)
sizes = dict(hidden_size=768, num_attention_heads=12, num_hidden_layers=1, intermediate_size=3072)
model = AutoModel.from_config(ViTConfig(**sizes, image_size={side}, patch_size=16), attn_implementation="sdpa").eval()
x = torch.randn(1, 3, {side}, {side})
"""
RUN = "with torch.no_grad(), {watch}: model(x)"
WATCHED = {
    "the row of the class token": 'regard.hf.watch(model, want=[], rows="cls")',
    "mass by key": 'regard.hf.watch(model, want=["received"])',
    "entropy": 'regard.hf.watch(model, want=["entropy"])',
    "entropy, support and mass": "regard.hf.watch(model)",
}
USUAL = "entropy, support and mass"


def main() -> None:
    report("watch", chain(watch_rows(1024, [USUAL]), watch_rows(2048, list(WATCHED))))


def watch_rows(side: int, names: list[str]) -> Iterator[Row]:
    """MB and milliseconds of the pass with and without; the goal is 1.2 times the memory and 1.5 times the time."""
    setup, plain = SETUP.format(side=side), RUN.format(watch="torch.no_grad()")
    runs = [RUN.format(watch=WATCHED[name]) for name in names]
    memory = peak_memory(setup, plain)
    usual, *times = _milliseconds(setup, plain, *runs)
    for name, run, took in zip(names, runs, times, strict=True):
        case, used = f"{name}, {(side // 16) ** 2} tokens", peak_memory(setup, run)
        yield Row(case, "MB", used, "plain pass", memory, "at most 1.2 times", used <= 1.2 * memory)
        yield Row(case, "ms", took, "plain pass", usual, "at most 1.5 times", took <= 1.5 * usual)


def _milliseconds(setup: str, *runs: str) -> list[float]:
    """Processor time of each run, the less of two; one after the other, so that a busy machine slows all alike."""
    scope: dict[str, object] = {}
    exec(setup, scope)
    times: dict[str, list[float]] = {run: [] for run in runs}
    for _ in range(2):
        for run in runs:
            began = time.process_time()
            exec(run, scope)
            times[run].append(1000 * (time.process_time() - began))
    return [min(taken) for taken in times.values()]
