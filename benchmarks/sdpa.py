"""Python overhead of `attend`: the fused pairs against the same kernel called directly, in its fastest layout, and the
share of the checks for NaN and infinity."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attend import BATCH, WIDTH, both
from benchmarks.harness import Row, on_plain_path, race, report
from regard import Bilinear, Dot, attend, checks, softmax


def main() -> None:
    report("sdpa", sdpa_rows())


def unchecked(*tensors: Tensor) -> Tensor:
    with checks(False):
        return attend(*tensors)


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
        yield from check_rows(n, q, k, v)


def check_rows(n: int, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Row]:
    """Time of the checks of the inputs, by native kernels and by plain PyTorch."""
    most = 1.05 if n == 196 else 1.03
    for what, run in both(attend, q, k, v).items():
        runs: dict[str, Callable[[], object]] = {"on": run, "off": both(unchecked, q, k, v)[what]}
        t = race(runs | {"plain": on_plain_path(run)}, seconds=6.0, least=15)
        for label, path in (("checks", "on"), ("checks without kernels", "plain")):
            ratio = t[path].median / t["off"].median
            promise = f"at most {most}x its time" if path == "on" else ""
            yield Row(
                f"{label} N={n} {what}",
                "ms",
                t[path].median,
                "checks off",
                t["off"].median,
                promise,
                ratio <= most if promise else None,
            )
