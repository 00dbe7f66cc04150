"""MultiheadAttention with dot and softmax against torch's own, and the cost of other maps."""

from functools import partial

import torch
from torch import nn

import regard
from benchmarks.harness import Row, race, report
from regard.nn import MultiheadAttention

SHAPES = [(8, 197, 384, 6), (2, 197, 768, 12), (2, 1024, 512, 8), (16, 64, 256, 4), (1, 16, 64, 4)]
PROMISED = SHAPES[:-1]  # the last one is mostly Python overhead; it is measured without a promise


def main() -> None:
    report("multihead", [*against_torch(), *other_maps()])


def runs(layer: nn.Module, x: torch.Tensor) -> dict:
    def forward():
        with torch.no_grad():
            return layer.eval()(x, x, x, need_weights=False)[0]

    def both():
        layer.train()(x, x, x, need_weights=False)[0].sum().backward()

    return {"forward": forward, "forward+backward": both}


def against_torch() -> list[Row]:
    """Self-attention without weights; forward is in eval mode, where torch takes its native fast path."""
    rows = []
    for batch, length, width, heads in SHAPES:
        x = torch.randn(batch, length, width)
        theirs = nn.MultiheadAttention(width, heads, batch_first=True)
        ours = MultiheadAttention(width, heads, batch_first=True)
        ours.load_state_dict(theirs.state_dict())
        peer = runs(theirs, x)
        for what, run in runs(ours, x).items():
            t = race({"ours": run, "torch": peer[what]}, seconds=4.0, least=15)
            ratio = t["torch"].median / t["ours"].median
            promised = (batch, length, width, heads) in PROMISED
            rows.append(
                Row(
                    f"dot x softmax B={batch} L={length} E={width} H={heads} {what}",
                    "ms",
                    t["ours"].median,
                    "torch.nn.MultiheadAttention",
                    t["torch"].median,
                    "at least 0.95x" if promised else "",
                    ratio >= 0.95 if promised else None,
                )
            )
    return rows


def other_maps() -> list[Row]:
    """What a sparse map costs in a layer of a small vision transformer."""
    batch, length, width, heads = SHAPES[0]
    x = torch.randn(batch, length, width)
    peer = runs(nn.MultiheadAttention(width, heads, batch_first=True), x)
    maps = {
        "sparsemax": regard.sparsemax,
        "entmax 1.5": partial(regard.entmax, alpha=1.5),
        "learned entmax": regard.nn.Entmax(heads),
    }
    rows = []
    for name, map_ in maps.items():
        for what, run in runs(MultiheadAttention(width, heads, batch_first=True, map=map_), x).items():
            t = race({"ours": run, "torch": peer[what]}, seconds=3.0, least=7)
            case = f"dot x {name} B={batch} L={length} E={width} H={heads} {what}"
            rows.append(Row(case, "ms", t["ours"].median, "torch's, softmax", t["torch"].median))
    return rows
