"""Implementations of one operation agree: in every dtype and layout, on every awkward size, masked or not."""

import functools
from contextlib import nullcontext

import pytest
import torch
from twins import TWINS

from regard import native
from regard.native import _call, _largest
from regard.native._signatures import SIGNATURES

LAYOUTS = {
    "contiguous": lambda x: x,
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "turned": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
}
CASES = [
    pytest.param(name, form, dtype, layout, masked, id=f"{name}-{form}-{str(dtype)[6:]}-{layout}{'-masked' * masked}")
    for name, twins in TWINS.items()
    for form in twins.forms
    for dtype in twins.dtypes
    for layout in LAYOUTS
    for masked in twins.masks
    if (form, dtype, layout) != ("plain", torch.float64, "contiguous")  # that one judges
    if (form, dtype) != ("triton", torch.float64)  # which kernels for GPUs do not have
]


@pytest.mark.parametrize(("name", "form", "dtype", "layout", "masked"), CASES)
def test_twins_agree(name, form, dtype, layout, masked):
    if form == "native" and native.library() is None:
        pytest.skip("no native kernels here")
    if form == "triton":
        pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")
    twins, ran = TWINS[name], 0
    # A layout is a matter of strides: one kind of values and a few sizes show it.
    everything = layout == "contiguous"
    for shape in twins.shapes if everything else twins.shapes[-3:]:
        for kind in twins.values if everything else twins.values[:1]:
            for place in range(len(twins.settings)):
                ran += compare(name, form, (shape, kind, place, dtype, masked), LAYOUTS[layout])
    assert ran or not everything


def inputs(name, shape, kind, dtype, masked):
    """The tensors, and a mask or None: it hides a third of all entries, and the whole of the first row."""
    tensors = [x.to(dtype) for x in TWINS[name].inputs(shape, kind)]
    if not masked:
        return tensors, None
    size = (tensors[0].shape[-2], tensors[1].shape[-2]) if len(tensors) == 3 else tensors[0].shape
    mask = torch.rand(size, generator=torch.Generator().manual_seed(1)) < 0.67
    if size[0] > 1:
        mask[0] = False
    return tensors, mask


@functools.lru_cache(maxsize=4096)
def judged(name, case):
    """What the plain form gives in float64, and its gradients."""
    shape, kind, place, dtype, masked = case
    tensors, mask = inputs(name, shape, kind, dtype, masked)
    return run(name, "plain", [x.double() for x in tensors], mask, kind, place)


def run(name, form, tensors, mask, kind, place):
    """The results of a form and its gradients, or None where it does not apply."""
    twins = TWINS[name]
    # Where scores are tied, or are all but equal, rounding decides who is in a support, and the gradient jumps there.
    differentiated = twins.gradient and kind in ("unit", "wide")
    leaves = [x.detach().requires_grad_(differentiated) for x in tensors]
    with native.switched_off() if form == "plain" else nullcontext():
        result = twins.forms[form](*leaves, mask=mask, **twins.settings[place])
        if result is None or not differentiated:
            return result if result is None or isinstance(result, tuple) else (result,), ()
        direction = torch.sin(torch.arange(result.numel(), dtype=torch.float64)).view(result.shape)
        return (result.detach(),), torch.autograd.grad(result, leaves, direction.to(result.dtype))


def compare(name, form, case, layout):
    """Whether the form applies; fails if it gives something else than the plain one."""
    shape, kind, place, dtype, masked = case
    tensors, mask = inputs(name, shape, kind, dtype, masked)
    results, gradients = run(name, form, [layout(x) for x in tensors], mask, kind, place)
    if results is None:
        return False
    twins, single = TWINS[name], dtype != torch.float64
    what = f"{name}, {form}, {shape}, {kind}, {twins.settings[place]}"
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0
    expected, slopes = judged(name, case)
    for ours, theirs in zip(results, expected, strict=True):
        apart, largest = float((ours.double() - theirs.double()).abs().max()), float(theirs.double().abs().max())
        assert apart <= twins.close[0 if single else 1] + rounding * largest, f"{what}: {apart:.2g} apart"
    for ours, theirs in zip(gradients, slopes, strict=True):
        far = ((2e-3 if single else 1e-6) + rounding) * (1 + float(theirs.abs().max()))
        share = float(((ours.double() - theirs).abs() > far).double().mean())
        assert share <= 1e-3, f"{what}: {share:.2%} of the gradient is apart"
    return True


def test_every_kernel_has_a_twin():
    tested = {kernel for twins in TWINS.values() for kernel in twins.kernels}
    assert tested == set(SIGNATURES) - {"regard_version", "regard_level"}
    assert all("plain" in twins.forms and ("native" in twins.forms) == bool(twins.kernels) for twins in TWINS.values())


@pytest.mark.skipif(native.library() is None, reason="no native kernels here")
@pytest.mark.parametrize("name", [name for name, twins in TWINS.items() if twins.kernels])
def test_the_native_form_runs_its_kernels_and_the_plain_form_none(name, monkeypatch):
    """A twin that quietly ran as the other would agree with it."""
    names, prepared = set(), _call.prepared

    def noted(kernels, kernel):
        names.add(kernel)
        return prepared(kernels, kernel)

    monkeypatch.setattr(_call, "prepared", noted)
    monkeypatch.setattr(_largest, "prepared", noted)
    twins = TWINS[name]
    for form in ("plain", "native"):
        names.clear()
        for dtype in twins.dtypes:
            tensors, _ = inputs(name, twins.shapes[0 if name.startswith("attention") else -1], "unit", dtype, False)
            run(name, form, tensors, None, "unit", 0)
        # The gradient of one is the kernel of another, and attention looks for its largest entries.
        assert names >= set(twins.kernels) if form == "native" else not names
