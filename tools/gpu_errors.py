"""The errors of the Triton kernels of attention in the corrected interpreter, and those of the plain path in the same
dtype, beside float64: a table in Markdown.

    python -m tools.gpu_errors   # half a minute

Approximate functions err by 2^-22. Ends with status 1 if an error is beyond what the tests allow.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gpu import cases
from interpreter import interpreted

import regard
from regard import native
from regard.gpu import attention, kernels_for

NOISE = 2.0**-22
SIZES = [(2, 3, 3, 5), (31, 33, 16, 16), (65, 64, 17, 33), (5, 130, 40, 3)]


def calls(dtype: torch.dtype) -> Iterator[tuple]:
    """Those of the tests: data made to find faults in float32; alphas, lengths and widths in every dtype."""
    if dtype == torch.float32:
        yield from (call for _, *call in cases.few() if call[-1].alphas is None)
    for number in (2.0, 1.5, 1.3, 1.1):
        yield *cases.qkv(33, 65, 24, 8, dtype=dtype), cases.case(number, mask=cases.MASKS["keys"](33, 65))
    for size in SIZES:
        yield *cases.qkv(*size, dtype=dtype), cases.case(diagonal=size[1] - size[0])


def plain(q: Tensor, k: Tensor, v: Tensor, of: attention.Case, grad: Tensor) -> list[Tensor]:
    """Context and gradients by operations of torch in the dtype of q."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(of.diagonal)
    seen = seen if of.mask is None else seen & of.mask
    s = leaves[0] @ leaves[1].mT * of.scale
    s = s if of.bias is None else s + of.bias
    with native.switched_off(), kernels_for(None):
        c = regard.entmax(s, of.number, mask=seen.expand(s.shape)) @ leaves[2]
    return [c.detach(), *torch.autograd.grad(c, leaves, grad)]


def errors(q: Tensor, k: Tensor, v: Tensor, of: attention.Case) -> tuple[float, float]:
    """The largest of the kernels and of the plain path, relative to the largest entry of what is wrong."""
    grad = cases.numbers(*q.shape[:-1], v.shape[-1], seed=9, dtype=q.dtype)
    with interpreted(NOISE):
        result = attention.attend_forward(q, k, v, of)
        ours = [result.context, *attention.attend_backward(q, k, v, of, grad, result)[:3]]
    context, slopes = cases.dense(q, k, v, of, grad)
    expected = [context, *slopes[:3]]
    apart = [
        [
            float((x.double() - y).abs().max() / y.abs().max().clamp(min=1e-3))
            for x, y in zip(found, expected, strict=True)
        ]
        for found in (ours, plain(q, k, v, of, grad))
    ]
    return max(apart[0]), max(apart[1])


def main() -> None:
    """Print the table."""
    print("| dtype | calls | kernels | plain PyTorch | kernels err more than twice as much in | allowed |")
    print("|---|---|---|---|---|---|")
    broken = 0
    for dtype, close in cases.CLOSE.items():
        found = [errors(*call) for call in calls(dtype)]
        ours, theirs = (max(column) for column in zip(*found, strict=True))
        worse = sum(x > 2 * y for x, y in found)
        broken += ours > close
        print(f"| {str(dtype)[6:]} | {len(found)} | {ours:.1e} | {theirs:.1e} | {worse} | {close:.0e} |")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
