"""The largest entry of a tensor in any layout: NaN and infinities are found; what it cannot read is left to torch."""

import math

import pytest
import torch

from regard import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler when the package was installed")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_largest_entry_of_any_layout(dtype):
    for n in (1, 7, 8, 9, 129, 40_000):
        x = torch.randn(2, n, 12).to(dtype)
        heads = x.view(2, n, 3, 4).transpose(1, 2)
        for view in (x, heads, heads[:, 1:], x[0], x[0, 0], x[:, -1:], x[1:].expand(3, n, 12), x.flatten()):
            assert native.largest(view) == view.abs().max().item()
        for bad in (math.nan, math.inf, -math.inf):
            for at in {0, n // 2, n - 1}:
                y = x.clone()
                y[1, at, 7] = bad
                assert native.largest(y) == native.largest(y.view(2, n, 3, 4).transpose(1, 2)[1:, 1]) == math.inf
                assert native.largest(y[:, :, :7]) == x[:, :, :7].abs().max().item()  # beside it
    assert native.largest(torch.ones(3, 4).mT[:2]) is None  # left to torch
    assert native.largest(torch.ones(3, dtype=torch.int32)) is None
    assert native.largest(torch.zeros(5)) == 0
