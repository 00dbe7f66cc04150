"""`NonLocal2d` against the same block with an explicit N x N matrix: 64 x 64, 256 channels, batch 2, with gradients.

Whole blocks share projections and output norm with their peers, so the part in which the algorithms differ is also
measured alone: the context from queries, keys and values ("attention only").
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks import limits
from benchmarks.harness import Row, peak_memory, race, report
from regard import Concatenation, Dot, attend, mean
from regard.nn import NonLocal2d

BATCH, CHANNELS, SIDE = 2, 256, 64
WARM = 16  # side of the warm-up's map; on a smaller one the libraries do not allocate their buffers
SMALL = 32  # the largest map on which tile-and-convolve fits into 8 GB
MOST = 1.15  # times the time of the necessary multiplications at the machine's rate
EXPLICIT, TILED = "explicit N x N", "tile and convolve"


class Explicit(nn.Module):
    """The usual implementation: convolutions, a matrix of all pairs, its product with the values.

    Concatenation tiles queries and keys to all pairs, (B, 2c, N, N), and sends them through a convolution and a ReLU.
    """

    def __init__(self, channels: int, kind: str) -> None:
        """Layers as usual; `kind` as in `NonLocal2d`."""
        super().__init__()
        self.kind, inner = kind, channels // 2
        if kind != "gaussian":
            self.theta, self.phi = nn.Conv2d(channels, inner, 1), nn.Conv2d(channels, inner, 1)
        if kind == "concatenation":
            self.project = nn.Conv2d(2 * inner, 1, 1, bias=False)
        self.g, self.out = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, height, width) to the same."""
        q, k = (x, x) if self.kind == "gaussian" else (self.theta(x), self.phi(x))
        q, k, v = (y.flatten(2) for y in (q, k, self.g(x)))
        if self.kind == "concatenation":
            p = tiled(q, k, self.project.weight) / k.shape[-1]
        else:
            s = q.mT @ k
            p = s / k.shape[-1] if self.kind == "dot_product" else s.softmax(-1)
        y = (p @ v.mT).mT.reshape(*v.shape[:2], *x.shape[2:])
        return x + self.norm(self.out(y))


def tiled(q: Tensor, k: Tensor, weight: Tensor) -> Tensor:
    """ReLU(w.[q_i, k_j]) for all pairs: (B, c, N) twice to (B, N, N)."""
    n, m = q.shape[-1], k.shape[-1]
    pairs = torch.cat([q.unsqueeze(-1).expand(-1, -1, n, m), k.unsqueeze(-2).expand(-1, -1, n, m)], 1)
    return torch.relu(torch.nn.functional.conv2d(pairs, weight)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    report("nonlocal_", [*block_rows(), *attention_rows(), *memory_rows()])


def step(f: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """Forward and backward, into fresh gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    direction = torch.randn_like(f(*leaves))

    def run() -> None:
        f(*leaves).backward(direction)

    return run


def duel(
    case: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    peer: str,
    needs: float,
    least: float | None = None,
) -> Row:
    """A race. The promise is about the peer if `least` is given, else about the time of `needs` multiplications."""
    # Tiling takes many seconds per run.
    t = race({"ours": ours, "theirs": theirs}, seconds=2.0, least=2 if peer == TILED else 5)
    ours_ms, theirs_ms, limit = t["ours"].median, t["theirs"].median, limits.limit(multiplications=needs)
    if least is not None:
        promise, kept = f"at least {least:g}x", theirs_ms / ours_ms >= least
    else:
        count = f"{needs / 1e9:.2g} G multiplications"
        promise, kept = f"at most {MOST:g} times the time of {count}", ours_ms <= MOST * limit
    return Row(case, "ms", ours_ms, peer, theirs_ms, promise, kept, limit)


def multiplications(kind: str, n: int, projections: bool) -> float:
    """That a block of n positions must do forward and backward, three times those of the forward pass.

    `projections`: whether those before and after the attention count; else queries and keys are given.
    """
    c = CHANNELS // 2
    attention = {
        "gaussian": n * n * (CHANNELS + c),
        "embedded_gaussian": 2 * n * n * c,
        "dot_product": 2 * n * c * c,
        "concatenation": 2 * n * c,
    }[kind]
    around = (2 if kind == "gaussian" else 4) * n * CHANNELS * c
    return 3 * BATCH * (attention + (around if projections else 0))


def block_rows() -> list[Row]:
    rows = []
    promises = {"gaussian": None, "embedded_gaussian": None, "dot_product": None, "concatenation": 50.0}
    for kind, least in promises.items():
        side = SMALL if kind == "concatenation" else SIDE
        x = torch.randn(BATCH, CHANNELS, side, side)
        ours, theirs = step(NonLocal2d(CHANNELS, kind), x), step(Explicit(CHANNELS, kind), x)
        peer = TILED if kind == "concatenation" else EXPLICIT
        needs = multiplications(kind, side * side, projections=True)
        rows.append(duel(f"block, {kind}, {side} x {side}", ours, theirs, peer, needs, least))
    return rows


def attention_rows() -> list[Row]:
    rows = []
    c, n = CHANNELS // 2, SIDE * SIDE
    q, k, v = (torch.randn(BATCH, n, c) / c**0.25 for _ in range(3))
    wide = torch.randn(BATCH, n, CHANNELS) / CHANNELS**0.25
    needs = lambda kind: multiplications(kind, n, projections=False)  # noqa: E731
    softmax = lambda q, k, v: (q @ k.mT).softmax(-1) @ v  # noqa: E731
    ours = lambda q, k, v: attend(q, k, v, Dot(1.0))  # noqa: E731
    rows.append(
        duel(
            "attention only, gaussian",
            step(ours, wide, wide, v),
            step(softmax, wide, wide, v),
            EXPLICIT,
            needs("gaussian"),
        )
    )
    rows.append(
        duel(
            "attention only, embedded_gaussian",
            step(ours, q, k, v),
            step(softmax, q, k, v),
            EXPLICIT,
            needs("embedded_gaussian"),
        )
    )
    linear = step(lambda q, k, v: attend(q, k, v, Dot(1.0), mean), q, k, v)
    explicit = step(lambda q, k, v: (q @ k.mT / n) @ v, q, k, v)
    rows.append(duel("attention only, dot_product", linear, explicit, EXPLICIT, needs("dot_product")))
    w = torch.randn(2 * c) / c**0.5
    some = SMALL * SMALL
    q, k, v = (x[:, :some] for x in (q, k, v))
    ranked = step(lambda q, k, v: attend(q, k, v, Concatenation(w[:c], w[c:]), mean), q, k, v)
    tile = step(lambda q, k, v: tiled(q.mT, k.mT, w.reshape(1, -1, 1, 1)) / some @ v, q, k, v)
    rows.append(
        duel(
            f"attention only, concatenation, {SMALL} x {SMALL}",
            ranked,
            tile,
            TILED,
            multiplications("concatenation", some, False),
            50,
        )
    )
    return rows


def memory_rows() -> list[Row]:
    """MB above the input, parameters and a warm-up on a small map."""
    rows = []
    for kind in ("gaussian", "embedded_gaussian", "dot_product", "concatenation"):
        side = SMALL if kind == "concatenation" else SIDE
        used = {}
        for maker in ("NonLocal2d", "Explicit"):
            setup = (
                "import torch\nfrom regard.nn import NonLocal2d\nfrom benchmarks.nonlocal_ import Explicit\n"
                f"block = {maker}({CHANNELS}, '{kind}')\n"
                f"block(torch.randn({BATCH}, {CHANNELS}, {WARM}, {WARM}, requires_grad=True)).sum().backward()\n"
                f"x = torch.randn({BATCH}, {CHANNELS}, {side}, {side}, requires_grad=True)\n"
            )
            # Less than 1 MB cannot be told from the imports' peak memory.
            used[maker] = max(1.0, peak_memory(setup, "block(x).sum().backward()"))
        promised = kind != "concatenation"
        ratio = used["Explicit"] / used["NonLocal2d"]
        peer = TILED if kind == "concatenation" else EXPLICIT
        case = f"memory of the block, {kind}, {side} x {side}"
        promise, kept = ("at least 10x", ratio >= 10) if promised else ("", None)
        rows.append(Row(case, "MB", used["NonLocal2d"], peer, used["Explicit"], promise, kept))
    return rows
