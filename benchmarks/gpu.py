"""Sparse maps and attention on a device, beside what else computes attention there, with the prediction beside it.

First come the promises that are not of speed (`gpu_promises`): errors, waits, graphs, memory.

`regard bench --device cuda`. With `--device cpu` the same code runs through small sizes, to try it out.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks import gpu_promises, roofline
from benchmarks.harness import race
from regard._files import replacing
from regard.training._device import choose_device, finish

PEERS = {"adasplash": "pip install adasplash", "entmax": "pip install entmax"}
SEND = "Please open an issue of the project with this file, whatever it says."
_HEADS, _WIDTH = 8, 64
_SMALL = (64, 197)  # on a CPU


@dataclass(frozen=True)
class Measured:
    """One comparison: milliseconds of both, their ratio, and the ratio that was predicted for each card."""

    case: str
    ours: float
    peer: str
    theirs: float
    predicted: dict[str, float]

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.theirs / self.ours

    def line(self) -> str:
        """As a line of the table."""
        told = ", ".join(f"{ratio:.2f} on {card}" for card, ratio in self.predicted.items()) or "nothing"
        times = f"{self.ours:10.3f} ms {self.theirs:10.3f} ms {self.ratio:8.2f}"
        return f"{self.case:<48} {self.peer:<16} {times}   predicted: {told}"


def missing() -> dict[str, str]:
    """Peers that are not installed, and how to install them."""
    return {name: how for name, how in PEERS.items() if importlib.util.find_spec(name) is None}


def cards_for(name: str) -> tuple[roofline.Card, ...]:
    """The card with this name; all that predictions were made for, if it is none of them."""
    return tuple(card for card in roofline.CARDS if card.name in name) or roofline.CARDS


def attention_peers(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """What else computes attention of these tensors here."""
    from torch.nn.attention.flex_attention import flex_attention

    flex: Any = torch.compile(flex_attention) if q.device.type == "cuda" else flex_attention
    peers: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"SDPA": sdpa, "FlexAttention": flex}
    if q.device.type == "cuda" and "adasplash" not in missing():
        from adasplash import adasplash  # type: ignore[import-not-found,unused-ignore]

        peers["adasplash"] = lambda q, k, v: adasplash(q, k, v, alpha=1.5, is_causal=False)
    return peers


def _step(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], *, backward: bool) -> Callable[[], None]:
    """A call, with its gradient or without, until the device has finished."""
    device = inputs[0].device
    leaves = tuple(x.detach().requires_grad_(backward) for x in inputs)

    def run() -> None:
        out = function(*leaves)
        if backward:
            torch.autograd.grad(out.sum(), leaves)
        finish(device)

    return run


def _able(runs: dict[str, Callable[[], None]]) -> dict[str, Callable[[], None]]:
    """Those that run here; for each of the others the reason is said."""
    able = {}
    for name, run in runs.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # FlexAttention's, that it was not compiled, on a CPU
                run()
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            print(f"{name}: cannot be measured here ({str(error).splitlines()[0]})")
        else:
            able[name] = run
    return able


def measure_attention(device: torch.device, n: int, kind: str, seconds: float) -> list[Measured]:
    """Entmax 1.5 beside softmax of others, forward and with the backward pass."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    q, k = (x.expand(1, _HEADS, n, _WIDTH).to(device, dtype).contiguous() for x in roofline.data(kind, n))
    v = torch.randn(1, _HEADS, n, _WIDTH, device=device, dtype=dtype)
    kept, found = roofline.kept_share(kind, n), []
    cards = cards_for(_name(device))
    for backward in (False, True):
        peers = attention_peers(q, k, v)
        runs = _able({name: _step(peer, (q, k, v), backward=backward) for name, peer in peers.items()})
        runs["ours"] = _step(lambda *x: regard.attend(*x, map=regard.Entmax(1.5)), (q, k, v), backward=backward)
        times = race(runs, seconds)
        case = f"attention, {kind}, N = {n}, {'both ways' if backward else 'forward'}"
        for name in [name for name in runs if name != "ours"]:
            expected = {c.name: roofline.predicted(n, kept, c, backward=backward) for c in cards}
            told = expected if name == "SDPA" else {}
            found.append(Measured(case, times["ours"].median, name, times[name].median, told))
    return found


def measure_rows(device: torch.device, rows: int, n: int, alpha: float, seconds: float) -> list[Measured]:
    """Entmax of a matrix beside torch's softmax, which moves the same bytes, and for 1.5 the package entmax."""
    s = torch.randn(rows, n, device=device)
    peers: dict[str, Callable[..., Tensor]] = {"torch.softmax": lambda x: x.softmax(-1)}
    if alpha == 1.5 and "entmax" not in missing():
        from entmax import entmax15  # type: ignore[import-untyped,unused-ignore]

        peers["entmax"] = entmax15
    found = []
    for backward in (False, True):
        runs = {name: _step(peer, (s,), backward=backward) for name, peer in peers.items()}
        times = race(runs | {"ours": _step(regard.Entmax(alpha), (s,), backward=backward)}, seconds)
        case = f"entmax {alpha}, {rows} x {n}, {'both ways' if backward else 'forward'}"
        for name in peers:
            told = {c.name: 1.0 for c in cards_for(_name(device))} if name == "torch.softmax" else {}
            found.append(Measured(case, times["ours"].median, name, times[name].median, told))
    return found


def measure_sinkhorn(device: torch.device, rows: int, columns: int, seconds: float) -> list[Measured]:
    """Three iterations, as for the codes of SwAV, beside torch's softmax, and beside plain PyTorch."""
    s = torch.randn(rows, columns, device=device)
    peers = {"torch.softmax": _step(lambda x: x.softmax(-1), (s,), backward=False)}
    peers["without Triton"] = _without_triton(_step(_codes, (s,), backward=False))
    times = race(peers | {"ours": _step(_codes, (s,), backward=False)}, seconds)
    told = {c.name: roofline.predicted_sinkhorn(rows, columns, 3, c) for c in cards_for(_name(device))}
    case, ours = f"sinkhorn, 3 iterations, {rows} x {columns}", times["ours"].median
    return [Measured(case, ours, x, times[x].median, told if x == "torch.softmax" else {}) for x in peers]


def _codes(s: Tensor) -> Tensor:
    return regard.sinkhorn(s, 0.05, 3).plan


def measure_chords(device: torch.device, questions: int, seconds: float) -> list[Measured]:
    """The expectation of 196 functions under a truncated paraboloid, beside plain PyTorch; nothing was predicted."""
    basis = regard.continuous.GaussianBasis.on_grid(14, 14, variance=1e-3)
    mean = torch.rand(questions, 2, device=device)
    variance = (0.02 * torch.eye(2, device=device)).expand(questions, 2, 2)

    def expect(mean: Tensor) -> Tensor:
        return regard.continuous.Paraboloid(mean, variance).expect(basis)

    found = []
    for backward in (False, True):
        run = _step(expect, (mean,), backward=backward)
        times = race({"without Triton": _without_triton(run), "ours": run}, seconds)
        case = f"continuous sparsemax, {questions}, {'both ways' if backward else 'forward'}"
        found.append(Measured(case, times["ours"].median, "without Triton", times["without Triton"].median, {}))
    return found


def _without_triton(run: Callable[[], None]) -> Callable[[], None]:
    def plain() -> None:
        with regard.gpu.kernels_for(None):
            run()

    return plain


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def main(
    name: str = "cuda", out: Path | None = None, sizes: tuple[int, ...] | None = None, seconds: float = 1.0
) -> Path:
    """Measure on a device, print each figure with its prediction, and write them to a file.

    `name`: of the device, as in `regard train`.
    `out`: the file; default out/bench-DEVICE.json.
    `sizes`: lengths of the attention; default `roofline.SIZES`, small ones on a CPU.
    `seconds`: shortest duration of each race; default 1.
    """
    device = choose_device(name)
    sizes = sizes or (_SMALL if device.type == "cpu" else roofline.SIZES)
    about = f"{_name(device)}, torch {torch.__version__}, Triton kernels: {regard.gpu.triton_kernels()}"
    print(about)
    for peer, how in missing().items():
        print(f"{peer}: not installed, not measured ({how})")
    if device.type != "cuda":
        print("Predictions are for cards with CUDA; here nothing follows from them.")
    promises = gpu_promises.promises(device)
    for promise in promises:
        print(promise.line(), flush=True)
    small = device.type == "cpu"
    found = []
    for alpha in (1.5, 2.0, 1.3):
        found += measure_rows(device, 64 if small else 4096, 1024, alpha, seconds)
    found += measure_sinkhorn(device, *((64, 30) if small else (4096, 3000)), seconds)
    found += measure_chords(device, 2 if small else 512, seconds)
    for kind in ("clustered", "gaussian"):
        for n in sizes:
            found += measure_attention(device, n, kind, seconds)
    for row in found:
        print(row.line())
    place = out or Path("out") / f"bench-{device.type}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    said = [asdict(promise) | {"kept": promise.kept} for promise in promises]
    content = {"device": about, "promises": said, "rows": [asdict(row) | {"ratio": row.ratio} for row in found]}
    with replacing(place) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n")
    print(f"Written: {place}. {SEND}")
    return place
