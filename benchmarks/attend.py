"""Each pair of affinity and map against the explicit N x N program: time, and memory at N = 16,384."""

from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.harness import Row, peak_memory, race, report
from regard import Bilinear, Concatenation, Dot, attend, mean, softmax

BATCH, WIDTH = 2, 64

SETUP = """
import torch, regard
from functools import partial
torch.manual_seed(0)
def inputs(n, queries=None):
    return [torch.randn(2, m, 64, requires_grad=True) for m in (queries or n, n, n)]
w = torch.randn(64) / 8
affinity = {{"dot": regard.Dot(), "bilinear": regard.Bilinear(torch.randn(64, 64) / 64),
            "concatenation": regard.Concatenation(w, w), "additive": regard.Additive(w)}}["{affinity}"]
map = {{"softmax": regard.softmax, "sparsemax": regard.sparsemax, "entmax 1.5": regard.entmax, "mean": regard.mean,
       "entmax 1.3": partial(regard.entmax, alpha=1.3)}}["{map}"]
regard.attend(*inputs(64), affinity, map).sum().backward()
q, k, v = inputs({n}, {queries})
"""


def main() -> None:
    report("attend", chain(explicit_rows(), sdpa_rows(), memory_rows()))


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
                )


def sdpa_rows() -> Iterator[Row]:
    """What our wrapping costs: the same kernel called by hand, in the layout that it likes best."""
    for n in (196, 1024, 4096):
        q, k, v = (torch.randn(BATCH, 4, n, WIDTH) for _ in range(3))
        weight = torch.randn(WIDTH, WIDTH) / WIDTH
        pairs = {
            "scaled dot x softmax": (attend, scaled_dot_product_attention),
            "Gaussian x softmax": (
                lambda q, k, v: attend(q, k, v, Dot(1.0)),
                lambda q, k, v: scaled_dot_product_attention(q, k, v, scale=1.0),
            ),
            "bilinear x softmax": (
                lambda q, k, v, w=weight: attend(q, k, v, Bilinear(w), softmax),
                lambda q, k, v, w=weight: scaled_dot_product_attention(q @ w, k, v, scale=1.0),
            ),
        }
        for name, (ours, by_hand) in pairs.items():
            for what, run in both(ours, q, k, v).items():
                t = race({"ours": run, "by hand": both(by_hand, q, k, v)[what]}, seconds=2.0, least=7)
                yield Row(
                    f"{name} N={n} {what}",
                    "ms",
                    t["ours"].median,
                    "SDPA by hand",
                    t["by hand"].median,
                    "at least 0.9x",
                    t["by hand"].median / t["ours"].median >= 0.9,
                )


def memory_rows() -> Iterator[Row]:
    """MB above the inputs, forward and backward, in a process of its own; the explicit scores and weights alone take
    2 x 2 x N x N x 4 bytes."""
    n = 16384
    for affinity in ("dot", "bilinear", "concatenation", "additive"):
        for map_name in ("softmax", "sparsemax", "entmax 1.5", "entmax 1.3", "mean"):
            # The additive affinity takes N x N x d hyperbolic tangents: a part of the queries, the same blocks.
            queries = 1024 if affinity == "additive" else n
            setup = SETUP.format(affinity=affinity, map=map_name, n=n, queries=queries)
            used = peak_memory(setup, "regard.attend(q, k, v, affinity, map).sum().backward()")
            explicit = 2 * 2 * queries * n * 4 / 2**20
            case = f"{affinity} x {map_name}, {queries} queries, {n} keys"
            yield Row(case, "MB", used, "scores and weights", explicit, "at most 400 MB", used <= 400)
