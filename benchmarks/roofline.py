"""How long a GPU should take, by arithmetic: products and bytes of a call over the published rates of a card.

`python -m benchmarks.roofline` prints the table of docs/guides/gpu.md. Nobody has run the kernels on a device: the
counts come from the interpreter (tests/gpu), the shares of tiles with weight from exact weights on a CPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard.gpu.attention import SHORT_ROWS, tiles_for

SIZES = (197, 1024, 4096, 16384)
STRETCHES = 5  # clusters of the clustered data, each of neighbouring tokens
SINKHORN_LAUNCHES = (57, 45)  # of a call, and of each of its iterations, nearly all of them on vectors
_SAMPLED = 16  # tiles of queries that are looked at


@dataclass(frozen=True)
class Card:
    """Published peak rates: products of bfloat16 with tensor cores, dense, per second; bytes of memory per second."""

    name: str
    operations: float
    bytes: float
    launch: float = 5e-6  # seconds between two launches, as a rule; not published


# "NVIDIA A100 Tensor Core GPU" datasheet, SXM 80 GB; "NVIDIA H100 Tensor Core GPU" datasheet, SXM, halved: without
# the doubling that it counts for structured sparsity.
CARDS = (Card("A100", 312e12, 2.039e12), Card("H100", 989e12, 3.35e12))


@dataclass(frozen=True)
class Work:
    """What a call does: operations, bytes that it must read and write, launches."""

    operations: float
    bytes: float
    launches: int

    def seconds(self, card: Card) -> float:
        """At the published rates: no call is faster."""
        return max(self.operations / card.operations, self.bytes / card.bytes) + self.launches * card.launch


def products(kept: float, n: int, *, backward: bool) -> float:
    """Products of tiles of the sparse kernels per pair of tiles, as counted in the interpreter at alpha 1.5.

    Forward 2 where all keys of a query fit in registers (up to 256); otherwise 1.9 where 20 % of the tiles have weight
    and 4 where all have, and a line between; backward 9 for each tile with weight. FlashAttention 2 needs 2 and 5,
    whatever the data.

    >>> round(products(0.2, 640, backward=False), 2), products(1.0, 197, backward=False)
    (1.9, 2.0)
    """
    if backward:
        return 9 * kept
    return 2.0 if n <= SHORT_ROWS else 1.9 + (4.0 - 1.9) * (kept - 0.2) / 0.8


def attention_work(heads: int, n: int, width: int, per_pair: float, tensors: int, launches: int) -> Work:
    """Attention of `heads` with `per_pair` products of tiles, which moves `tensors` tensors of bfloat16 once."""
    return Work(per_pair * 2 * heads * n * n * width, tensors * 2 * heads * n * width, launches)


def sparse_work(heads: int, n: int, width: int, kept: float, *, backward: bool) -> Work:
    """The kernels of regard, forward, or forward and backward."""
    forward = attention_work(heads, n, width, products(kept, n, backward=False), 4, 1)
    return _with_backward(forward, heads, n, width, products(kept, n, backward=True), 2) if backward else forward


def flash_work(heads: int, n: int, width: int, *, backward: bool) -> Work:
    """FlashAttention 2."""
    forward = attention_work(heads, n, width, 2, 4, 1)
    return _with_backward(forward, heads, n, width, 5, 3) if backward else forward


def _with_backward(forward: Work, heads: int, n: int, width: int, per_pair: float, launches: int) -> Work:
    then = attention_work(heads, n, width, per_pair, 8, launches)
    return Work(forward.operations + then.operations, forward.bytes + then.bytes, forward.launches + launches)


def rows_work(rows: int, n: int, size: int, *, backward: bool) -> Work:
    """A map of rows: twice the matrix forward, three times backward, one launch each."""
    return Work(0, rows * n * size * (5 if backward else 2), 2 if backward else 1)


def predicted_sinkhorn(rows: int, columns: int, iterations: int, card: Card) -> float:
    """The time of torch's softmax of float32 scores divided by that of Sinkhorn's iterations.

    Scores are read once for each iteration and once for the plan, which is written. Beside its sweep each iteration has
    operations on vectors, each a launch: counted in the interpreter.
    """
    size = rows * columns * 4
    ours = Work(0, size * (iterations + 2), SINKHORN_LAUNCHES[0] + iterations * SINKHORN_LAUNCHES[1])
    return Work(0, size * 2, 1).seconds(card) / ours.seconds(card)


def data(kind: str, n: int, width: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries and keys (N, D): "gaussian", or "clustered" around a centre for each stretch of tokens."""
    random = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(n, width, generator=random) for _ in range(2))
    if kind == "clustered":
        centres = 4 * torch.randn(STRETCHES, width, generator=random)
        where = torch.arange(n) * STRETCHES // n
        q, k = (x + centres[where] for x in (q, k))
    return q, k


@functools.cache
def kept_share(kind: str, n: int, alpha: float = 1.5) -> float:
    """The share of tiles that have a weight, by exact weights of some tiles of queries, on the CPU."""
    size = tiles_for(torch.bfloat16, 64, n)
    q, k = data(kind, n)
    starts = range(0, n, size.queries)
    found: list[bool] = []
    for start in list(starts)[:: max(1, len(starts) // _SAMPLED)]:
        p = regard.attention_weights(q[start : start + size.queries], k, map=regard.Entmax(alpha))
        found += [bool((part > 0).any()) for part in p.split(size.keys, -1)]
    return sum(found) / len(found)


def table(sizes: tuple[int, ...] = SIZES, heads: int = 8, width: int = 64) -> str:
    """The prediction as Markdown: time of FlashAttention 2 divided by ours, on each card."""
    lines = [
        "| data | N | tiles with weight | products forward, backward | " + " | ".join(c.name for c in CARDS) + " |"
    ]
    lines.append("|---" * (4 + len(CARDS)) + "|")
    for kind in ("clustered", "gaussian"):
        for n in sizes:
            kept = kept_share(kind, n)
            counts = f"{products(kept, n, backward=False):.1f}, {products(kept, n, backward=True):.1f}"
            cells = []
            for card in CARDS:
                ratios = (predicted(n, kept, card, backward=backward, heads=heads, width=width) for backward in (0, 1))
                cells.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
            lines.append(f"| {kind} | {n:,} | {kept:.0%} | {counts} | {' | '.join(cells)} |")
    return "\n".join(lines)


def predicted(n: int, kept: float, card: Card, *, backward: bool, heads: int = 8, width: int = 64) -> float:
    """The time of FlashAttention 2 divided by ours, both at the card's peak."""
    theirs = flash_work(heads, n, width, backward=bool(backward)).seconds(card)
    return theirs / sparse_work(heads, n, width, kept, backward=bool(backward)).seconds(card)


if __name__ == "__main__":
    print(table())
