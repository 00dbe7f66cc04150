"""Watching a ViT at 16,384 tokens against its plain pass: one layer of ViT-B under SDPA, peak memory and time."""

import time
from collections.abc import Iterator

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
    "entropy, support and mass": "regard.hf.watch(model)",
}


def main() -> None:
    report("watch", watch_rows())


def watch_rows(side: int = 2048) -> Iterator[Row]:
    """MB and seconds of the pass with and without; the goal is 1.2 times the memory and 1.5 times the time."""
    memory, seconds = _measured("torch.no_grad()", side)
    for name, watch in WATCHED.items():
        case = f"{name}, {(side // 16) ** 2} tokens"
        used, took = _measured(watch, side)
        yield Row(case, "MB", used, "plain pass", memory, "at most 1.2 times", used <= 1.2 * memory)
        yield Row(case, "ms", took, "plain pass", seconds, "at most 1.5 times", took <= 1.5 * seconds)


def _measured(watch: str, side: int) -> tuple[float, float]:
    """Peak memory above the model and its picture, in a fresh process, and milliseconds of processor time."""
    setup, run = SETUP.format(side=side), RUN.format(watch=watch)
    used = peak_memory(setup, run)
    scope: dict[str, object] = {}
    exec(setup, scope)
    began = time.process_time()
    exec(run, scope)
    return used, 1000 * (time.process_time() - began)
