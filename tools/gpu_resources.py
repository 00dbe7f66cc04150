"""The registers, spills and shared memory of the Triton kernels for GPUs, compiled without one: a page in Markdown.

    python -m tools.gpu_resources > docs/gpu-kernels.md   # sm_80, sm_90 and gfx942; ten minutes
    python -m tools.gpu_resources sm_90

Ends with status 1 if a kernel spills registers.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import triton
from compiled import TARGETS, Recorder, compiled
from triton.runtime.jit import JITFunction

import regard
from regard.gpu import attention, chords, rows, transport

LEARNED = "learned"
HEAD = f"""# Registers of the kernels for GPUs

Compiled by Triton {triton.__version__} without a device, by `python -m tools.gpu_resources`. A cell has the registers
of a thread, the bytes that it spills, and the bytes of shared memory of a program. Attention has a mask of keys, a bias
of pairs with its gradient, and tiles as `regard.gpu.attention` chooses them. Products of float32 are exact, three of
TF32 (tf32x3; exact on AMD, and up to a width of 32) or one of TF32. [What the kernels do](guides/gpu.md).
"""
#: With the precision of products of float32.
DTYPES = [
    (torch.bfloat16, "ieee"),
    (torch.float16, "ieee"),
    (torch.float32, "ieee"),
    (torch.float32, "tf32x3"),
    (torch.float32, "tf32"),
]


def attend(dtype: torch.dtype, width: int, alpha: float | str, n: int, precision: str) -> None:
    """Attention with a mask of keys and a bias of pairs, forward and backward."""
    q = torch.zeros(1, 2, n, width, dtype=dtype)
    mask, bias = torch.ones(1, 1, 1, n, dtype=torch.bool), torch.zeros(1, 2, n, n, dtype=dtype)
    alphas = torch.ones(1, 2) if alpha == LEARNED else None
    case = attention.Case(mask, bias, alphas, 1.5 if alphas is None else 0.0, 0.125, n, precision)
    result = attention.attend_forward(q, q, q, case)
    attention.attend_backward(q, q, q, case, q, result, alphas is not None, True)


def launches() -> list[tuple[str, tuple]]:
    """What is launched for some calls, with their names."""
    recorder = Recorder()
    JITFunction.run = lambda self, *args, **options: recorder(self, *args, **options)
    named = []

    def name(text: str) -> None:
        named.extend((text, launch) for launch in recorder.launches[len(named) :])

    with regard.checks(False):
        for n in (1024, 4096, 16384, 100_000):
            for alpha in (1.5, 1.3, LEARNED):
                s = torch.zeros(2, n)
                alphas = torch.ones(2, 1) if alpha == LEARNED else None
                rows.entmax_forward(s, None, alphas, 0.0 if alphas is not None else alpha)
                rows.entmax_backward(s, s, alphas, 0.0 if alphas is not None else alpha)
                name(f"rows of {n:,}, alpha {alpha}, float32")
        for dtype, precision in DTYPES:
            for width in (32, 64) if dtype == torch.float32 else (32, 64, 128):
                for alpha in (1.5, LEARNED):
                    for n in (197, 4096):
                        attend(dtype, width, alpha, n, precision)
                        said = str(dtype)[6:] if precision == "ieee" else precision
                        name(f"attention, d = {width}, N = {n}, alpha {alpha}, {said}")
        for columns in (128, 3000, 8192):
            s, g, a = torch.zeros(2, 64, columns), torch.zeros(2, columns), torch.zeros(2, 64)
            transport.sweep_columns(s, g, g, a, torch.zeros(2), 0.05, False, True)
            name(f"Sinkhorn, {columns:,} columns, float32")
        flat, nodes, series = [torch.zeros(16, 128, 1)] * 4, torch.zeros(20), torch.zeros(2, 14)
        for q in (1, 2):
            chords.chord_sums(flat, nodes, nodes, series, q, 5.0, 0.5)
            name(f"chords, q = {q}, float32")
    return named


def main() -> None:
    """Print the table."""
    targets = sys.argv[1:] or list(TARGETS)
    print(HEAD)
    print("| call | kernel | warps |", " | ".join(f"{t}: registers / spilled bytes / shared" for t in targets), "|")
    print("|---" * (3 + len(targets)) + "|")
    by_target = []
    for target in targets:
        torch.version.hip = "6" if target == "gfx942" else None  # the choice of tiles depends on it
        by_target.append(launches())
    spilling = 0
    for same in zip(*by_target, strict=True):
        name, launch = same[0]
        found = [compiled(x, target) for (_, x), target in zip(same, targets, strict=True)]
        spilling += sum(x.spills > 0 for x in found)
        cells = [f"{x.registers} / {x.spills} / {x.shared:,}" for x in found]
        warps = ", ".join(dict.fromkeys(str(x[2]["num_warps"]) for _, x in same))
        print(f"| {name} | `{launch[0].fn.__name__}` | {warps} |", " | ".join(cells), "|", flush=True)
    print(f"\n{len(by_target[0])} kernels for {len(targets)} targets; {spilling} of them spill registers.")
    sys.exit(spilling > 0)


if __name__ == "__main__":
    main()
