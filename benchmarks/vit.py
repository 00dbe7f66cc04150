"""Attention at the sizes of vision transformers, softmax and sparse maps, against SDPA's softmax in the same run.

Scores of unit variance are what queries and keys of a trained head tend to; those of a tenth of it are nearly equal, as
early in training, and few weights are zero then.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.harness import Row, race, report

SHAPES = [(16, 12, 197, 64), (4, 12, 785, 64), (64, 4, 49, 32)]
WHAT = ("forward", "forward+backward")
# By variance of the scores, then by map: the largest multiples of SDPA's time, forward and forward+backward.
MOST = {
    1.0: {"softmax": (1.03, 1.03), "sparsemax": (1.2, 0.7), "entmax 1.5": (1.2, 0.7), "entmax 1.3": (1.8, 1.2)}
    | {"learned alphas": (1.8, 1.2)},
    0.1: dict.fromkeys(("sparsemax", "entmax 1.5", "entmax 1.3", "learned alphas"), (2.5, 1.4)),
}


def main() -> None:
    print(f"native kernels: {regard.native_kernels()}")
    torch.manual_seed(0)
    report("vit", vit_rows())


def maps(heads: int) -> dict[str, tuple[regard.Map, list[Tensor]]]:
    """Each map, and the tensors of it that are learned: one alpha for each head, from 1.2 to 1.8."""
    alpha = torch.linspace(1.2, 1.8, heads).view(heads, 1, 1).requires_grad_()
    return {
        "softmax": (regard.softmax, []),
        "sparsemax": (regard.sparsemax, []),
        "entmax 1.5": (regard.entmax, []),
        "entmax 1.3": (regard.Entmax(1.3), []),
        "learned alphas": (regard.Entmax(alpha), [alpha]),
    }


def timed(f: Callable[..., Tensor], what: str, inputs: list[Tensor], learned: list[Tensor]) -> Callable[[], object]:
    """One run of `f`, with the gradients in its inputs and in what is learned or without any."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    grad = torch.randn_like(inputs[0])

    def forward() -> object:
        with torch.no_grad():
            return f(*inputs)

    def backward() -> object:
        return torch.autograd.grad(f(*leaves), [*leaves, *learned], grad)

    return forward if what == "forward" else backward


def vit_rows(dtype: torch.dtype = torch.float32, variances: tuple[float, ...] = (1.0, 0.1)) -> Iterator[Row]:
    """Every shape, map and direction, in `dtype`, with scores of these variances."""
    prefix = "" if dtype == torch.float32 else f"{str(dtype).removeprefix('torch.')} "
    for shape in SHAPES:
        for variance in variances:
            promises = MOST[variance]
            q, k, v = (torch.randn(shape) for _ in range(3))
            inputs = [x.to(dtype) for x in (q * variance**0.5, k, v)]
            known = maps(shape[1])
            for name, most in promises.items():
                map_, learned = known[name]
                for what, limit in zip(WHAT, most, strict=True):
                    contestants = {
                        "ours": timed(partial(regard.attend, map=map_), what, inputs, learned),
                        "sdpa": timed(scaled_dot_product_attention, what, inputs, []),
                    }
                    t = race(contestants, seconds=2.0, least=7)
                    mine, theirs = t["ours"].median, t["sdpa"].median
                    case = f"{prefix}{name} {shape} variance {variance:g} {what}"
                    promise = f"at most {limit:g} times its time"
                    yield Row(case, "ms", mine, "SDPA's softmax", theirs, promise, mine <= limit * theirs)
