"""Attention at the sizes of vision transformers in bfloat16, float16 and float64, against SDPA in each.

The kernels read and write these as they are; the promises are those of float32.
"""

from collections.abc import Iterator

import torch

import regard
from benchmarks.harness import Row, report
from benchmarks.vit import vit_rows

DTYPES = torch.bfloat16, torch.float16, torch.float64


def main() -> None:
    print(f"native kernels: {regard.native_kernels()}")
    torch.manual_seed(0)
    report("vit_dtypes", rows())


def rows() -> Iterator[Row]:
    for dtype in DTYPES:
        yield from vit_rows(dtype, (1.0,))
