"""Memory of every pair of affinity and map at N = 16,384, d = 64, batch 2, forward and backward."""

from collections.abc import Iterator

from benchmarks.harness import Row, peak_memory, report

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
    report("memory", memory_rows())


def memory_rows() -> Iterator[Row]:
    """MB above the inputs, forward and backward, in a fresh process; explicit scores and weights alone would take
    2 x 2 x N x N x 4 bytes."""
    n = 16384
    for affinity in ("dot", "bilinear", "concatenation", "additive"):
        for map_name in ("softmax", "sparsemax", "entmax 1.5", "entmax 1.3", "mean"):
            # The additive affinity computes N x N x d hyperbolic tangents: fewer queries, in blocks of the same size.
            queries = 1024 if affinity == "additive" else n
            setup = SETUP.format(affinity=affinity, map=map_name, n=n, queries=queries)
            used = peak_memory(setup, "regard.attend(q, k, v, affinity, map).sum().backward()")
            explicit = 2 * 2 * queries * n * 4 / 2**20
            case = f"{affinity} x {map_name}, {queries} queries, {n} keys"
            yield Row(case, "MB", used, "scores and weights", explicit, "at most 400 MB", used <= 400)
