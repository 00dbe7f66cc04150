"""What the compiler makes of the kernels for three targets, without a device: no spills, no float64, wide loads."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from compiled import TARGETS, Recorder, compiled
from triton.runtime.jit import JITFunction

import regard
from regard.gpu.rows import entmax_backward, entmax_forward

SHARED = 99 * 1024  # bytes that every card since sm_80 gives a program


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    recorder = Recorder()
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **options: recorder(self, *args, **options))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with regard.checks(False):
        yield recorder


def check(launch, target):
    resources = compiled(launch, target)
    what = launch[0].fn.__name__, target, launch[1], launch[2]
    assert resources.spills == 0, what
    assert resources.shared <= SHARED, what
    assert not resources.double, what
    assert resources.wide_loads, what


@pytest.mark.parametrize("target", TARGETS)
def test_rows(target, recorder):
    mask, alpha = torch.ones(2, 1, dtype=torch.bool), torch.ones(2, 1)
    for n, order in ((1024, 2.0), (16384, 1.5), (16384, 1.3), (16384, 1.1), (100_000, 1.5)):
        s = torch.zeros(2, n)
        entmax_forward(s, None, None, order)
        entmax_backward(s, s, None, order)
    for n, dtype in ((4096, torch.bfloat16), (8192, torch.float16), (16384, torch.float32), (100_000, torch.float32)):
        s = torch.zeros(2, n, dtype=dtype)
        entmax_forward(s, mask.expand(2, n), alpha, 0.0)
        entmax_backward(s, s, alpha, 0.0)
    for launch in recorder.launches:
        check(launch, target)
