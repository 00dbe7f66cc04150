"""The algorithms that never form the scores, against the explicit N x N program."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.harness import Row, race, report
from regard import Concatenation, Dot, attend, mean

BATCH, WIDTH = 2, 64


def main() -> None:
    report("attend", explicit_rows())


def both(f: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    return {"forward": lambda: f(q, k, v), "forward+backward": lambda: f(*leaves).sum().backward()}


def explicit_rows() -> Iterator[Row]:
    """The algorithms that never form the scores, against the program that does."""
    for n in (4096, 16384):
        q, k, v = (torch.randn(BATCH, n, WIDTH) for _ in range(3))
        w = torch.randn(WIDTH) / 8
        pairs = {
            ("concatenation x mean", 25): (
                lambda q, k, v, w=w: attend(q, k, v, Concatenation(w, w), mean),
                lambda q, k, v, n=n, w=w: torch.relu((q @ w).unsqueeze(-1) + (k @ w).unsqueeze(-2)) @ v / n,
            ),
            ("concatenation x softmax", 0): (
                lambda q, k, v, w=w: attend(q, k, v, Concatenation(w, w)),
                lambda q, k, v, w=w: torch.softmax(torch.relu((q @ w).unsqueeze(-1) + (k @ w).unsqueeze(-2)), -1) @ v,
            ),
            ("dot x mean", 50): (
                lambda q, k, v: attend(q, k, v, Dot(), mean),
                lambda q, k, v, n=n: (q @ k.mT) / WIDTH**0.5 @ v / n,
            ),
            ("dot x softmax", 0): (
                lambda q, k, v: attend(q, k, v),
                lambda q, k, v: torch.softmax(q @ k.mT / WIDTH**0.5, -1) @ v,
            ),
        }
        for (name, least), (ours, explicit) in pairs.items():
            for what, run in both(ours, q, k, v).items():
                t = race({"ours": run, "explicit": both(explicit, q, k, v)[what]}, seconds=1.0, least=3)
                ratio = t["explicit"].median / t["ours"].median
                promised = n == 16384 and least > 0
                yield Row(
                    f"{name} N={n} {what}",
                    "ms",
                    t["ours"].median,
                    "explicit N x N",
                    t["explicit"].median,
                    f"at least {least}x" if promised else "",
                    ratio >= least if promised else None,
                    _limit(name, n, what),
                )


def _limit(name: str, n: int, what: str) -> float:
    """Milliseconds: inputs and outputs once, and the products: of all pairs for dot x softmax, else of features."""
    passes = 1 if what == "forward" else 3
    pairs = {"dot x softmax": 2 * n * n * WIDTH, "dot x mean": 2 * n * WIDTH**2}
    return limits.limit(passes * 4 * BATCH * n * WIDTH, passes * BATCH * pairs.get(name, 2 * n * WIDTH))
