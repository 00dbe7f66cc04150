"""What docs/guides/gpu.md promises of the kernels for GPUs beside their speed, looked at on the device itself.

Errors beside float64, waits for the device, graphs of CUDA, memory. `regard bench --device` runs it first: a kernel
that is wrong has no speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

import regard
from regard import native
from regard.training._device import finish

#: Errors that are promised, by dtype: of the weights of rows, and of attention relative to the largest entry.
ROWS = {torch.float32: 3e-7, torch.float16: 5e-4, torch.bfloat16: 4e-3}
ATTENTION = {torch.float32: 3e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}
TOKENS = (197, 700)  # short rows, and rows in tiles
_ON_CUDA = "only a GPU with CUDA or ROCm can say"


@dataclass(frozen=True)
class Promise:
    """One promise: what it is of, how much was promised at most, and what was found; None where this device cannot."""

    of: str
    most: float
    found: float | None
    reason: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether it is kept; None where that cannot be said here."""
        return None if self.found is None else self.found <= self.most

    def line(self) -> str:
        """As a line of the table."""
        verdict = {True: "kept", False: "BROKEN", None: "not measured"}[self.kept]
        found = self.reason if self.found is None else f"{self.found:.3g} of at most {self.most:.3g}"
        return (
            f"{self.of:<56} {verdict:<13} {found}{f': {self.reason}' if self.found is not None and self.reason else ''}"
        )


def promises(device: torch.device) -> list[Promise]:
    """All of them."""
    found = [_rows(device, dtype, alpha) for dtype in ROWS for alpha in (2.0, 1.5, 1.3)]
    found += [_attention(device, dtype, n) for dtype in ATTENTION for n in TOKENS]
    return [*found, _waits(device), _graph(device), _memory(device)]


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.detach().cpu().double() - theirs.detach()).abs().max())


def _rows(device: torch.device, dtype: torch.dtype, alpha: float) -> Promise:
    s = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    with native.switched_off():
        error = _apart(regard.entmax(s.to(device), alpha), regard.entmax(s.double(), alpha))
    return Promise(f"rows, alpha {alpha}, {str(dtype)[6:]}: error of a weight", ROWS[dtype], error)


def _inputs(n: int, dtype: torch.dtype, heads: int = 2, width: int = 64) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, n, width, generator=random).to(dtype) for _ in range(3)]


def _both_ways(inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    c = regard.attend(*leaves, map=regard.Entmax(1.5))
    return [c.detach(), *torch.autograd.grad(c, leaves, torch.ones_like(c).cumsum(-1) / c.shape[-1])]


def _attention(device: torch.device, dtype: torch.dtype, n: int) -> Promise:
    """The largest error of the context and the three gradients."""
    inputs = _inputs(n, dtype)
    with native.switched_off():
        ours = _both_ways([x.to(device) for x in inputs])
        theirs = _both_ways([x.double() for x in inputs])
    error = max(_apart(x, y) / float(y.abs().max()) for x, y in zip(ours, theirs, strict=True))
    return Promise(f"attention both ways, N = {n}, {str(dtype)[6:]}: error", ATTENTION[dtype], error)


def _waits(device: torch.device) -> Promise:
    """Torch raises in a call that waits. The first step fills caches."""
    of = "a step of attention and MultiheadAttention: waits"
    if device.type != "cuda":
        return Promise(of, 0, None, _ON_CUDA)
    inputs = [x.to(device) for x in _inputs(700, torch.bfloat16)]
    layer = regard.nn.MultiheadAttention(64, 2, batch_first=True, map="entmax").to(device)
    x = torch.randn(2, 700, 64, device=device)

    def step() -> None:
        _both_ways(inputs)
        layer(x, x, x, need_weights=False)[0].sum().backward()

    step()
    finish(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return Promise(of, 0, 1, str(error).splitlines()[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Promise(of, 0, 0)


def _graph(device: torch.device) -> Promise:
    """A graph of CUDA of attention both ways, replayed on other numbers."""
    of = "attention both ways as a graph of CUDA: difference"
    if device.type != "cuda":
        return Promise(of, 0, None, _ON_CUDA)
    inputs = [x.to(device) for x in _inputs(700, torch.bfloat16)]
    try:
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _both_ways(inputs)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            captured = _both_ways(inputs)
        for x in inputs:
            x.mul_(-0.5)
        graph.replay()
        again = _both_ways(inputs)
        finish(device)
    except RuntimeError as error:
        return Promise(of, 0, 1, str(error).splitlines()[0])
    return Promise(of, 0, max(float((x - y).abs().max()) for x, y in zip(captured, again, strict=True)))


def _memory(device: torch.device, n: int = 4096) -> Promise:
    """Bytes at the peak of attention forward beyond its inputs, beside the context and what the guide lists."""
    of = f"attention forward, N = {n:,}: bytes beside q, k, v"
    if device.type != "cuda":
        return Promise(of, 0, None, _ON_CUDA)
    q, k, v = (x.to(device) for x in _inputs(n, torch.bfloat16))
    heads, width = q.shape[1], v.shape[-1]
    tiles = -(-n // 64) * -(-n // 32)
    # The context, three numbers for each query, five bytes for each pair of tiles; torch gives out blocks of 512 bytes.
    most = heads * (n * width * 2 + 3 * 4 * n + 5 * tiles) + 8 * 512

    def attend() -> None:
        regard.attend(q, k, v, map=regard.Entmax(1.5))

    return Promise(of, most, _peak(attend, device))


def _peak(run: Callable[[], None], device: torch.device) -> float:
    run()
    finish(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    finish(device)
    return cast(int, torch.cuda.max_memory_allocated(device)) - before
