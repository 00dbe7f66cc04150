"""Faults that are planted in the kernels, each found by the data of `cases.py` or by calls of rows."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from gpu.cases import CLOSE, few, solved
from interpreter import Race, interpreted
from triton.runtime.errors import InterpreterError
from waits import as_on_a_device

import regard
from regard import gpu, native
from regard.continuous import quadrature
from regard.gpu import (
    _attention_backward_kernels,
    _attention_forward_kernels,
    _attention_tile_kernels,
    _chord_kernels,
    _long_row_kernels,
    _row_backward_kernels,
    _row_kernels,
    _transport_kernels,
)

ATTENTION = {
    "a key past the end": ("(keys < Lk)[None, :]", "(keys < Lk + 1)[None, :]"),
    "a query past the end": ("inside = (rows < length)[:, None]", "inside = (rows <= length)[:, None]"),
    "causal, off by one": ("keys[None, :] <= rows[:, None] + diagonal", "keys[None, :] < rows[:, None] + diagonal"),
    "causal, a tile too few": ("(i + 1) * BM + diagonal)", "i * BM + diagonal)"),
    "the mask of another query": ("wide_rows[:, None] * strides[3][2]", "(wide_rows * 0)[:, None] * strides[3][2]"),
    "a mask that is turned": ("other=0) != 0)", "other=0) == 0)"),
    "the bias in other units": (".to(tl.float32) * unit", ".to(tl.float32)"),
    "skips too eagerly": ("tl.where(ok, no_weight_below(low, delta, KIND), float(\"inf\"))", "tl.where(ok, 0.5 * no_weight_below(low, delta, KIND), float(\"inf\"))"),
    "skips by the first row": ("low - 1.0 / delta, -float(\"inf\"))", "low, -float(\"inf\"))"),
    "skips a tile that has weight": ("<= 0.0:  # thresholds only rise", "<= 0.5:  # thresholds only rise"),
    "a start above the threshold": ("    return low\n\n\n@triton.jit\ndef no_weight_below", "    return low + 0.05\n\n\n@triton.jit\ndef no_weight_below"),
    "stops too early": ("far = total > 1.0 + TOLERANCE", "far = total > 3.0"),
    "no look for NaN": ("s = tl.where(s != s, float(\"inf\"), s)", "s = tl.where(s != s, s, s)"),
    "an exact step that is not": ("(root <= least_y)", "(root <= 1e4 * least_y)"),
    "weights that are not divided": ("tl.where(ok, 1.0 / total,", "tl.where(ok, 1.01 / total,"),
    "the last active tile forgotten": ("    for j in range(0, tiles_k):\n        if tl.load(ACTIVE + place + j) != 0:", "    for j in range(0, tiles_k - 1):\n        if tl.load(ACTIVE + place + j) != 0:"),
    "a centre with the wrong sign": ("input_precision=PRECISION) - centre[:, None])", "input_precision=PRECISION) + centre[:, None])"),
    "a gradient without its scale": ("dk * scale", "dk * 1.0"),
    "keys where queries belong": ("dk += tl.dot(tl.trans(ds.to(q.dtype)), q,", "dk += tl.dot(tl.trans(p.to(q.dtype)), q,"),
    "a product in TF32": ("tl.dot(q, tl.trans(k), input_precision=PRECISION)", "tl.dot(q, tl.trans(k))"),
    "a group that forgets its third": ("third = tl.maximum(third, least)", "third = tl.maximum(third, third)"),
    "a threshold that is taken for known": ("<= no_weight_below(low, delta, KIND)) | (tiles <= KEPT_OF_GROUP)", "<= no_weight_below(low, delta, KIND) + 0.5) | (tiles <= KEPT_OF_GROUP)"),
    "more tiles than are kept": ("(tiles <= KEPT_OF_GROUP)", "(tiles <= 100 * KEPT_OF_GROUP)"),
    "the bias of the first head alone": ("range(0, shared_batch * shared_heads)", "range(0, 1)"),
    "the bias of another example": ("part // own_heads * shared_batch", "part * shared_batch"),
    "a tile of the bias forgotten": ("    elif OF_KEYS:\n        first_k", "    elif OF_KEYS:\n        last_q = tiles_q - 1\n        first_k"),
    "a race of programs": ("NEAR + place + j", "NEAR + j"),
    "a race of threads after the first pass": ("    tl.debug_barrier()  # NEAR is read by other threads than wrote it\n", ""),
    "a race of threads between passes": ("        tl.debug_barrier()\n    reach", "    reach"),
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
TRANSPORT = {
    "a row past the end": ("mask=row < rows, other=0.0)", "mask=row < rows + 1, other=0.05)"),
    "a column past the end": ("    inside = at < columns\n", "    inside = at <= columns\n"),
    "rounding that is dropped": ("z = ((y - base[:, None]) + lost)", "z = (y - base[:, None])"),
    "half of a potential": ("+ low[None, :]", "- low[None, :]"),
    "sums of other scale": ("sums = sums * tl.exp2(peak - shift)", "sums = sums"),
    "a tile that replaces the others": ("        peak = higher\n", "        peak = tl.max(logs, 0)\n"),
    "the plan of rows that are not scaled": ("z + share[:, None]", "z"),
    "another matrix": ("begin = matrix.to(tl.int64) * rows", "begin = 0 * matrix.to(tl.int64) * rows"),
}
CHORDS = {
    "an ellipse past the end": ("inside = at < count", "inside = at <= count"),
    "an arcsine of one branch": ("far = size > 0.5", "far = size > 2.0"),
    "a tail of the other side": ("tl.where(b - h > 0.0, -beside,", "tl.where(b - h > 0.0, beside,"),
    "the closed form of short chords": ("tl.where(short, e, d)", "tl.where(short, d, d)"),
    "a degree of Hermite's": ("x * second - (m + 2.0) * odd", "x * second - (m + 1.0) * odd"),
    "by parts everywhere": ("tl.where(wide > 2.0, -4.0", "tl.where(wide > 0.0, -2.0"),
    "a slope without its sign": ("y_q = -4.0 * following * fifth", "y_q = 4.0 * following * fifth"),
}


def planted(modules, old, new, folder, monkeypatch):
    """The first module whose source has the line, with a fault; and those after it, which use it, in their places."""
    sources = [Path(module.__file__).read_text() for module in modules]
    first = next((n for n, source in enumerate(sources) if old in source), None)
    assert first is not None, old
    for module, source in list(zip(modules, sources, strict=True))[first:]:
        name = module.__name__.rpartition(".")[2]
        path = folder / f"{name}.py"
        path.write_text(source.replace(old, new))
        spec = importlib.util.spec_from_file_location(f"planted{name}", path)
        wrong = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"planted{name}", wrong)
        spec.loader.exec_module(wrong)
        monkeypatch.setitem(sys.modules, module.__name__, wrong)
        monkeypatch.setattr(gpu, name, wrong)


#: The call that shows a fault first, by the beginning of its name; the first one if it is not here.
SHOWN_BY = {
    "causal, off by one": "causal, k",
    "causal, a tile too few": "causal, k",
    "the mask of another query": "masked by pair",
    "a mask that is turned": "masked by key",
    "skips too eagerly": "near the threshold, before",
    "skips by the first row": "alphas",
    "activity of another head": "clustered",
    "stops too early": "many tiles",
    "an exact step that is not": "many tiles",
    "a group that forgets its third": "many tiles",
    "a threshold that is taken for known": "many tiles",
    "more tiles than are kept": "many tiles",
    "a race of threads after the first pass": "many tiles",
    "a race of threads between passes": "broad",
    "the bias of the first head alone": "a bias that",
    "the bias of another example": "a bias that",
}


def wrong_call(fault=None):
    """The name of the first call of attention that is wrong, or None; the one that shows the fault comes first."""
    first = SHOWN_BY.get(fault, "negative")
    calls = sorted(few(), key=lambda call: not call[0].startswith(first))
    for name, *x, of in calls if fault != "no look for NaN" else []:
        if not max(solved(*x, of)) <= CLOSE[torch.float32]:
            return name
    with regard.checks(False):
        q = torch.zeros(1, 1, 4, 16)
        q[0, 0, 1, 0] = float("nan")
        c = regard.attend(q, torch.ones(1, 1, 5, 16), torch.ones(1, 1, 5, 2), map="entmax")
    return None if bool(c[0, 0, 1].isnan().all()) else "a query that is NaN"


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


def transport_is_right():
    for shape, eps in (((2, 19, 5), 0.05), ((9, 600), 0.002)):
        s = 2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1
        with native.switched_off():
            expected = regard.sinkhorn(s.double(), eps, 3).plan
            with as_on_a_device():
                plan = regard.sinkhorn(s, eps, 3).plan
        if not float((plan.double() - expected).abs().max() / expected.max()) <= 4e-6:
            return False
    return True


def chords_are_right():
    y1, y2 = torch.linspace(-4, 4, 9).view(3, 3, 1), torch.linspace(3, -5, 9).view(3, 3, 1)
    short = torch.tensor([1.8, 0.7, 6.0]).view(3, 1, 1)
    for q, longer in ((1, 3.0), (2, 0.1)):
        flat = [y1, y2, short + longer, short]
        sums = quadrature._by_kernel(flat, q, 20, 5.0)
        expected = quadrature._block(*(x.double() for x in flat), 1, q, 20, 5.0)
        if not float(((sums - expected) / expected.abs().amax((0, 1))).abs().max()) <= 5e-5:
            return False
    return True


def found(right):
    """Whether a fault shows, as a wrong number or as an access that is refused."""
    try:
        with interpreted(), regard.checks(False):
            return not right()
    except (InterpreterError, IndexError, Race):
        return True


def test_without_a_fault_nothing_is_found():
    with interpreted(), regard.checks(False):
        assert wrong_call() is None
    assert not found(rows_are_right)
    assert not found(transport_is_right)
    assert not found(chords_are_right)


@pytest.mark.parametrize("fault", ATTENTION)
def test_faults_of_attention(fault, tmp_path, monkeypatch):
    planted(
        (_attention_tile_kernels, _attention_forward_kernels, _attention_backward_kernels),
        *ATTENTION[fault],
        tmp_path,
        monkeypatch,
    )
    assert found(lambda: wrong_call(fault) is None)


@pytest.mark.parametrize("fault", ROWS)
def test_faults_of_rows(fault, tmp_path, monkeypatch):
    planted((_row_kernels, _long_row_kernels, _row_backward_kernels), *ROWS[fault], tmp_path, monkeypatch)
    assert found(rows_are_right)


@pytest.mark.parametrize("fault", TRANSPORT)
def test_faults_of_transport(fault, tmp_path, monkeypatch):
    planted((_transport_kernels,), *TRANSPORT[fault], tmp_path, monkeypatch)
    assert found(transport_is_right)


@pytest.mark.parametrize("fault", CHORDS)
def test_faults_of_chords(fault, tmp_path, monkeypatch):
    planted((_chord_kernels,), *CHORDS[fault], tmp_path, monkeypatch)
    assert found(chords_are_right)
