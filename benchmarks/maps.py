"""Sparsemax and entmax 1.5 against the entmax package and torch.softmax."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import regard
from benchmarks.harness import Row, installed, race, report

SHAPES = [(4096, 196), (512, 4096), (64, 32000)]


def timed(f: Callable[..., Tensor], shape: tuple[int, int], what: str) -> Callable[[], object]:
    torch.manual_seed(0)
    s, grad = torch.randn(shape), torch.randn(shape)
    leaf = s.clone().requires_grad_()
    return (lambda: f(s)) if what == "forward" else (lambda: f(leaf).backward(grad))


def main() -> None:
    if installed("entmax") is None:
        print("skipped: the peer `entmax` is not installed (pip install 'regard[bench]')\n")
        return
    import entmax

    rows = []
    for shape in SHAPES:
        for name, ours, theirs in (
            ("sparsemax", regard.sparsemax, entmax.sparsemax),
            ("entmax 1.5", regard.entmax, entmax.entmax15),
        ):
            contestants = {"ours": ours, "entmax": partial(theirs, dim=-1), "softmax": partial(torch.softmax, dim=-1)}
            for what in ("forward", "forward+backward"):
                t = race({who: timed(f, shape, what) for who, f in contestants.items()})
                case = f"{name} {shape} {what}"
                ratio = t["entmax"].median / t["ours"].median
                rows.append(Row(case, "ms", t["ours"].median, "entmax", t["entmax"].median, "at least 5x", ratio >= 5))
                rows.append(Row(case, "ms", t["ours"].median, "torch.softmax", t["softmax"].median))
    report("maps", rows)
