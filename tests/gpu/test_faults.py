"""Faults that are planted in the kernels, each found by the data of `cases.py` or by calls of rows."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from interpreter import interpreted
from triton.runtime.errors import InterpreterError

import regard
from gpu.cases import CLOSE, few, solved
from regard import gpu, native
from regard.gpu import _attention_kernels, _row_kernels

ATTENTION = {
    "a key past the end": ("(keys < Lk)[None, :]", "(keys < Lk + 1)[None, :]"),
    "a query past the end": ("inside = (rows < length)[:, None]", "inside = (rows <= length)[:, None]"),
    "causal, off by one": ("keys[None, :] <= rows[:, None] + diagonal", "keys[None, :] < rows[:, None] + diagonal"),
    "causal, a tile too few": ("(i + 1) * BM + diagonal)", "i * BM + diagonal)"),
    "the mask of another query": ("wide_rows[:, None] * mask_l", "(wide_rows * 0)[:, None] * mask_l"),
    "a mask that is turned": ("seen & (part != 0)", "seen & (part == 0)"),
    "the bias in other units": ("bias.to(tl.float32) * unit", "bias.to(tl.float32)"),
    "skips too eagerly": ("    return tl.min(tl.where(ok, tau, float(\"inf\")), 0)", "    return tl.min(tl.where(ok, 0.5 * tau, float(\"inf\")), 0)"),
    "skips by the first row": ("tau - 1.0 / delta, -float(\"inf\"))", "tau, -float(\"inf\"))"),
    "skips a tile that has weight": ("<= 0.0:  # thresholds only rise", "<= 0.5:  # thresholds only rise"),
    "a start above the threshold": ("    return low\n\n\n@triton.jit\ndef reach_of", "    return low + 0.05\n\n\n@triton.jit\ndef reach_of"),
    "stops too early": ("far = total > 1.0 + TOLERANCE", "far = total > 3.0"),
    "no look for NaN": ("s = tl.where(s != s, float(\"inf\"), s)", "s = tl.where(s != s, s, s)"),
    "an exact step that is not": ("(root <= least)", "(root <= 3.0 * least)"),
    "weights that are not divided": ("tl.where(ok, 1.0 / total,", "tl.where(ok, 1.01 / total,"),
    "the last active tile forgotten": ("    for j in range(0, tiles_k):\n        if tl.load(ACTIVE + place + j) != 0:", "    for j in range(0, tiles_k - 1):\n        if tl.load(ACTIVE + place + j) != 0:"),
    "a centre with the wrong sign": ("input_precision=PRECISION) - centre[:, None])", "input_precision=PRECISION) + centre[:, None])"),
    "a gradient without its scale": ("(dk * scale)", "(dk * 1.0)"),
    "keys where queries belong": ("dk += tl.dot(tl.trans(ds.to(q.dtype)), q,", "dk += tl.dot(tl.trans(p.to(q.dtype)), q,"),
    "activity of another head": ("(z.to(tl.int64) * tiles_q + i) * tiles_k + j) != 0", "(0 * z.to(tl.int64) * tiles_q + i) * tiles_k + j) != 0"),
}  # fmt: skip
ROWS = {
    "an entry past the end": ("    inside = at < n\n", "    inside = at <= n\n"),
    "NaN in a maximum": ('tl.where(tl.sum((x != x).to(tl.int32), 0) > 0, float("nan"), tl.max(x, 0))', "tl.max(x, 0)"),
    "steps the wrong way": ("low = tl.where(moving, low + step, low)", "low = tl.where(moving, low - step, low)"),
    "a row that is not divided": ("    p = p / tl.sum(p, 0)\n", "    p = p * 1.000002\n"),
    "rows of a mask": ("middle.to(tl.int64) * stride_b", "middle.to(tl.int64) * stride_c"),
    "a mask that is turned": ("tl.where(seen != 0, x,", "tl.where(seen == 0, x,"),
    "the slope of alpha": ("w = tl.where(inside, tl.exp2((1.0 - delta)", "w = tl.where(inside, tl.exp2((1.01 - delta)"),
    "a centre without its sum": ("tl.sum(w * g, 0) / total, 0.0)", "tl.sum(w * g, 0), 0.0)"),
    "a chunk of a long row": ("        total += p\n", "        total = p\n"),
}


def planted(module, old, new, folder, monkeypatch):
    """The module with a fault, in the place of the right one."""
    source = Path(module.__file__).read_text()
    assert source.count(old) >= 1, old
    path = folder / "planted.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("planted", path)
    wrong = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted", wrong)
    spec.loader.exec_module(wrong)
    name = module.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, module.__name__, wrong)
    monkeypatch.setattr(gpu, name, wrong)


def attention_is_right():
    if not all(max(solved(*tensors, of)) <= CLOSE[torch.float32] for _, *tensors, of in few()):
        return False
    with regard.checks(False):
        q = torch.zeros(1, 1, 4, 16)
        q[0, 0, 1, 0] = float("nan")
        c = regard.attend(q, torch.ones(1, 1, 5, 16), torch.ones(1, 1, 5, 2), map="entmax")
    return bool(c[0, 0, 1].isnan().all())


def rows_are_right():
    s = torch.randn(2, 3, 4, 33, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(2, 1, 4, 33, generator=torch.Generator().manual_seed(1)) < 0.6
    long = 3 * torch.randn(1, 20000, generator=torch.Generator().manual_seed(2))
    for x, m, alpha in (
        (s, mask, 1.5),
        (s, None, 1.3),
        (s.transpose(0, 1), mask.transpose(0, 1), 2.0),
        (long, None, 2.0),
    ):
        found = []
        for dtype in (torch.float32, torch.float64):
            leaf = x.to(dtype).detach().requires_grad_()
            with gpu.kernels_for("cpu" if dtype == torch.float32 else None), native.switched_off():
                p = regard.entmax(leaf, alpha, mask=m)
                found.append(
                    (
                        p.detach(),
                        *torch.autograd.grad(p, leaf, torch.sin(torch.arange(x.numel())).view(x.shape).to(dtype)),
                    )
                )
        if not all(float((ours - theirs).abs().max()) <= 1e-6 for ours, theirs in zip(*found, strict=True)):
            return False
    with regard.checks(False):
        s[0, 0, 0, 3] = float("nan")
        return bool(regard.entmax(s)[0, 0, 0].isnan().all())


def found(right):
    """Whether a fault shows, as a wrong number or as an access that is refused."""
    try:
        with interpreted(), regard.checks(False):
            return not right()
    except (InterpreterError, IndexError):
        return True


def test_without_a_fault_nothing_is_found():
    assert not found(attention_is_right)
    assert not found(rows_are_right)


@pytest.mark.parametrize("fault", ATTENTION)
def test_faults_of_attention(fault, tmp_path, monkeypatch):
    planted(_attention_kernels, *ATTENTION[fault], tmp_path, monkeypatch)
    assert found(attention_is_right)


@pytest.mark.parametrize("fault", ROWS)
def test_faults_of_rows(fault, tmp_path, monkeypatch):
    planted(_row_kernels, *ROWS[fault], tmp_path, monkeypatch)
    assert found(rows_are_right)
