"""Sparsemax and entmax 1.5 against the entmax package and torch.softmax."""

import torch

import regard
from benchmarks.harness import Row, installed, race, report

SHAPES = [(4096, 196), (512, 4096), (64, 32000)]


def main() -> None:
    if installed("entmax") is None:
        print("skipped: the peer `entmax` is not installed (pip install 'regard[bench]')\n")
        return
    import entmax

    rows = []
    for shape in SHAPES:
        s = torch.randn(shape)
        grad = torch.randn(shape)
        leaf = s.clone().requires_grad_()
        for name, ours, theirs in (
            ("sparsemax", regard.sparsemax, entmax.sparsemax),
            ("entmax 1.5", regard.entmax, entmax.entmax15),
        ):
            contestants = {
                "ours": ours,
                "entmax": lambda x, f=theirs: f(x, -1),
                "softmax": lambda x: torch.softmax(x, -1),
            }
            for what in ("forward", "forward+backward"):
                timed = {
                    who: (lambda f=f: f(s)) if what == "forward" else (lambda f=f: f(leaf).backward(grad))
                    for who, f in contestants.items()
                }
                t = race(timed)
                case = f"{name} {shape} {what}"
                ratio = t["entmax"].median / t["ours"].median
                rows.append(Row(case, "ms", t["ours"].median, "entmax", t["entmax"].median, "at least 5x", ratio >= 5))
                rows.append(Row(case, "ms", t["ours"].median, "torch.softmax", t["softmax"].median))
    report("maps", rows)
