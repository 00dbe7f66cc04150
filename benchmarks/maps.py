"""Sparsemax and entmax against the entmax package and torch.softmax, and sparse attention against SDPA's softmax."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks import limits
from benchmarks.harness import Row, peer, race, report

SHAPES = [(4096, 196), (65536, 128), (512, 4096), (64, 32000)]
WHAT = ("forward", "forward+backward")


def timed(f: Callable[..., Tensor], what: str, *inputs: Tensor) -> Callable[[], object]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    grad = torch.randn_like(f(*inputs))
    return (lambda: f(*inputs)) if what == "forward" else (lambda: f(*leaves).backward(grad))


def main() -> None:
    print(f"native kernels: {regard.native_kernels()}")
    torch.manual_seed(0)
    report("maps", chain(map_rows(), attention_rows()))


def map_rows() -> Iterator[Row]:
    packaged: dict[str, Callable[..., Tensor]] = {}
    if (entmax := peer("entmax")) is not None:
        packaged = {"sparsemax": entmax.sparsemax, "entmax 1.5": entmax.entmax15}
    for shape in SHAPES:
        s = torch.randn(shape)
        for name, ours, most in (
            ("sparsemax", regard.sparsemax, 1.5),
            ("entmax 1.5", regard.entmax, 1.5),
            ("entmax 1.3", partial(regard.entmax, alpha=1.3), 2.0),
        ):
            for what in WHAT:
                case, mine = f"{name} {shape} {what}", timed(ours, what, s)
                # Scores and weights; then weights, their gradient, that of the scores.
                least = limits.limit(numbers=s.numel() * (2 if what == "forward" else 5))
                # Races of two: the package's sort evicts everything from the caches.
                if name in packaged:
                    t = race({"ours": mine, "entmax": timed(partial(packaged[name], dim=-1), what, s)}, seconds=0.5)
                    us, theirs = t["ours"].median, t["entmax"].median
                    yield Row(case, "ms", us, "entmax", theirs, "at least 5x", theirs >= 5 * us, least)
                t = race({"ours": mine, "softmax": timed(partial(torch.softmax, dim=-1), what, s)})
                us, theirs = t["ours"].median, t["softmax"].median
                promise = f"at most {most:g} times its time"
                yield Row(case, "ms", us, "torch.softmax", theirs, promise, us <= most * theirs, least)


def attention_rows() -> Iterator[Row]:
    """One head of scores with unit variance, as queries and keys of width 64 give them."""
    for n in (1024, 2048, 4096, 8192, 16384):
        q, k, v = (torch.randn(1, 1, n, 64) for _ in range(3))
        for name, map_ in (("sparsemax", regard.sparsemax), ("entmax 1.5", regard.entmax)):
            contestants = {"ours": partial(regard.attend, map=map_), "sdpa": scaled_dot_product_attention}
            for what, most in zip(WHAT, (2.5, 1.0), strict=True):
                t = race({who: timed(f, what, q, k, v) for who, f in contestants.items()}, seconds=1.5, least=3)
                mine, theirs = t["ours"].median, t["sdpa"].median
                case = f"attention, {name}, N = {n}, {what}"
                promise, kept = f"at most {most:g} times its time", mine <= most * theirs
                promised = n in (4096, 16384)
                verdict = (promise, kept) if promised else ("", None)
                # Only the scores cannot be avoided: the weights are few, and so is what the gradient needs.
                least = limits.limit(numbers=(4 if what == "forward" else 8) * q.numel(), multiplications=n * n * 64)
                yield Row(case, "ms", mine, "SDPA's softmax", theirs, *verdict, least)
