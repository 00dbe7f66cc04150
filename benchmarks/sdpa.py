"""What our wrapping costs: the fused pairs beside the same kernel called by hand, in the layout that it likes best."""

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attend import BATCH, WIDTH, both
from benchmarks.harness import Row, race, report
from regard import Bilinear, Dot, attend, softmax


def main() -> None:
    report("sdpa", sdpa_rows())


def sdpa_rows() -> Iterator[Row]:
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
