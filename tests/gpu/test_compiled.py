"""What the compiler makes of the kernels for three targets, without a device: no spills, no float64, wide loads."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from compiled import TARGETS, Recorder, compiled
from triton.runtime.jit import JITFunction

import regard
from regard.gpu import attention, transport
from regard.gpu.chords import chord_sums
from regard.gpu.rows import entmax_backward, entmax_forward

SHARED = 99 * 1024  # bytes that every card since sm_80 gives a program


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    recorder = Recorder()
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **options: recorder(self, *args, **options))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with regard.checks(False):
        yield recorder


def check(launch, target, spills=0, wide=True):
    resources = compiled(launch, target)
    what = launch[0].fn.__name__, target, launch[2]
    assert resources.spills <= spills, what
    assert resources.shared <= SHARED, what
    assert not resources.double, what
    assert resources.wide_loads or not wide, what


@pytest.mark.parametrize("target", TARGETS)
def test_rows(target, recorder, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6" if target == "gfx942" else None)  # warps of 64 there
    mask, alpha = torch.ones(2, 1, dtype=torch.bool), torch.ones(2, 1)
    for n, order in ((16384, 1.5), (100_000, 1.1)):
        s = torch.zeros(2, n)
        entmax_forward(s, None, None, order)
        entmax_backward(s, s, None, order)
    for n, dtype in ((8192, torch.bfloat16),):
        s = torch.zeros(2, n, dtype=dtype)
        entmax_forward(s, mask.expand(2, n), alpha, 0.0)
        entmax_backward(s, s, alpha, 0.0)
    for launch in recorder.launches:
        check(launch, target)


@pytest.mark.parametrize("target", TARGETS)
def test_attention(target, recorder, monkeypatch):
    """Those that spilled with other tiles. `python -m tools.gpu_resources` compiles all, and fails if one spills."""
    monkeypatch.setattr(torch.version, "hip", "6" if target == "gfx942" else None)
    learned = torch.ones(1, 2)
    kinds = {
        "sm_80": [(torch.bfloat16, 128, 0.0, learned, 197), (torch.float32, 64, 0.0, learned, 512)],
        "sm_90": [(torch.bfloat16, 64, 1.5, None, 197), (torch.float32, 32, 0.0, learned, 197)],
        "gfx942": [(torch.float16, 64, 0.0, learned, 197), (torch.float16, 128, 0.0, learned, 512)],
    }[target]
    for dtype, width, number, alphas, n in kinds:
        q = torch.zeros(1, 2, n, width, dtype=dtype)
        mask, bias = torch.ones(1, 1, 1, n, dtype=torch.bool), torch.zeros(1, 1, n, n, dtype=dtype)
        case = attention.Case(mask, bias, alphas, number, 0.125, n, "ieee")
        result = attention.attend_forward(q, q, q, case)
        attention.attend_backward(q, q, q, case, q, result, alphas is not None, True)
    for launch in recorder.launches:
        check(launch, target)


@pytest.mark.parametrize("target", TARGETS)
def test_transport_and_chords(target, recorder):
    s, g, a = torch.zeros(2, 64, 8192), torch.zeros(2, 8192), torch.zeros(2, 64)
    transport.sweep_columns(s, g, g, a, torch.zeros(2), 0.05, False, True)
    flat, nodes, series = [torch.zeros(16, 128, 1)] * 4, torch.zeros(20), torch.zeros(2, 14)
    chord_sums(flat, nodes, nodes, series, 2, 5.0, 0.5)
    for launch in recorder.launches:
        check(launch, target, wide=launch[0].fn.__name__ != "chords_of_ellipses")  # a lane reads its own ellipse
