"""Weights in the layouts of mmcv and of the authors: the imported block computes what theirs does, written out here."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.importers import caffe2_nonlocal, mmcv_nonlocal
from regard.nn import NonLocal1d, NonLocal2d, NonLocal3d

C, INNER = 6, 4
SPACES = {1: (8,), 2: (6, 4), 3: (2, 4, 6)}
BLOCKS = {1: NonLocal1d, 2: NonLocal2d, 3: NonLocal3d}
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
CELL = {1: (2,), 2: (2, 2), 3: (1, 2, 2)}
NAMES = ("weight", "bias", "running_mean", "running_var")


def mmcv_state(mode, dimensions, sub_sample=False, norm=False, prefix=""):
    """What `state_dict` of mmcv's block gives, with random numbers."""
    ones, number = (1,) * dimensions, "0." if sub_sample else ""
    state = {"conv_out.conv.weight": torch.randn(C, INNER, *ones)}
    for name in ("g",) if mode == "gaussian" else ("g", "phi", "theta"):
        inside = "" if name == "theta" else number
        state[f"{name}.{inside}conv.weight"] = torch.randn(INNER, C, *ones)
        state[f"{name}.{inside}conv.bias"] = torch.randn(INNER)
    if mode == "concatenation":
        state["concat_project.conv.weight"] = torch.randn(1, 2 * INNER, 1, 1)
    if norm:
        state |= {f"conv_out.bn.{name}": 0.5 + torch.rand(C) for name in NAMES}
        state["conv_out.bn.num_batches_tracked"] = torch.tensor(7)
    else:
        state["conv_out.conv.bias"] = torch.randn(C)
    return {prefix + name: x for name, x in state.items()}


def mmcv_forward(state, x, mode, use_scale=True, sub_sample=False):
    """mmcv's block in evaluation mode, as its description has it: all pairs, one step after the other."""
    dimensions, number = x.dim() - 2, "0." if sub_sample else ""
    pool = (lambda y: POOL[dimensions](y, CELL[dimensions])) if sub_sample else (lambda y: y)

    def conv(name, y):
        return CONV[dimensions](y, state[f"{name}.conv.weight"], state.get(f"{name}.conv.bias"))

    g = pool(conv(f"g.{number}".rstrip("."), x)).flatten(2).mT
    theta = (x if mode == "gaussian" else conv("theta", x)).flatten(2).mT
    phi = pool(x if mode == "gaussian" else conv(f"phi.{number}".rstrip("."), x)).flatten(2).mT
    if mode == "concatenation":
        pairs = torch.cat(
            [theta.unsqueeze(2).expand(-1, -1, phi.shape[1], -1), phi.unsqueeze(1).expand(-1, theta.shape[1], -1, -1)],
            -1,
        )
        f = torch.relu(pairs @ state["concat_project.conv.weight"].flatten()) / phi.shape[1]
    else:
        f = theta @ phi.mT
        f = f / math.sqrt(INNER) if mode == "embedded_gaussian" and use_scale else f
        f = f / phi.shape[1] if mode == "dot_product" else f.softmax(-1)
    y = conv("conv_out", (f @ g).mT.reshape(len(x), INNER, *x.shape[2:]))
    if "conv_out.bn.weight" in state:
        scale, shift, mean, var = (state[f"conv_out.bn.{n}"].reshape(-1, *(1,) * dimensions) for n in NAMES)
        y = (y - mean) / (var + 1e-5).sqrt() * scale + shift
    return x + y


@pytest.mark.parametrize("mode", ["gaussian", "embedded_gaussian", "dot_product", "concatenation"])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("sub_sample", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_mmcv(mode, dimensions, sub_sample, norm, tmp_path):
    torch.save(mmcv_state(mode, dimensions, sub_sample, norm, "backbone.layer3.1."), tmp_path / "block.pth")
    state = torch.load(tmp_path / "block.pth", weights_only=True)
    kind = "dot_product" if mode == "dot_product" else "embedded_gaussian"
    block = mmcv_nonlocal(state | {"backbone.conv1.weight": torch.ones(1)}, "backbone.layer3.1.", kind)
    assert type(block) is BLOCKS[dimensions]
    assert block.affinity == mode
    assert not block.training
    x = torch.randn(2, C, *SPACES[dimensions])
    bare = {name.removeprefix("backbone.layer3.1."): y for name, y in state.items()}
    want = mmcv_forward(bare, x, mode, sub_sample=sub_sample)
    torch.testing.assert_close(block(x), want, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(want, x, atol=0.1)


def test_mmcv_without_a_scale():
    state, x = mmcv_state("embedded_gaussian", 2), torch.randn(2, C, 5, 4)
    want = mmcv_forward(state, x, "embedded_gaussian", use_scale=False)
    torch.testing.assert_close(mmcv_nonlocal(state, scale=1.0)(x), want, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(mmcv_nonlocal(state)(x), want, atol=1e-2)


def blobs_of(kind, prefix="nonlocal_conv3_1"):
    """The authors' blobs; `kind` says what follows the last convolution."""
    blobs = {"conv1_w": torch.randn(3).numpy()}
    for name, shape in {"theta": (INNER, C), "phi": (INNER, C), "g": (INNER, C), "out": (C, INNER)}.items():
        blobs[f"{prefix}_{name}_w"] = torch.randn(*shape, 1, 1, 1).numpy()
        blobs[f"{prefix}_{name}_b"] = torch.randn(shape[0]).numpy()
        blobs[f"{prefix}_{name}_w_momentum"] = torch.randn(*shape, 1, 1, 1).numpy()
    for name in {"batch": ("s", "b", "rm", "riv"), "affine": ("s", "b"), "nothing": ()}[kind]:
        blobs[f"{prefix}_bn_{name}"] = (0.5 + torch.rand(C)).numpy()
    return blobs


def caffe2_forward(blobs, x, softmax=True, use_scale=True, pooled=True, prefix="nonlocal_conv3_1"):
    """Theta of all positions, phi and g of the pooled ones, and the norm by its running mean and variance."""
    part = {name.removeprefix(f"{prefix}_"): torch.from_numpy(y) for name, y in blobs.items()}
    few = F.max_pool3d(x, (1, 2, 2)) if pooled else x
    theta, phi, g = (F.conv3d(y, part[f"{n}_w"], part[f"{n}_b"]) for n, y in (("theta", x), ("phi", few), ("g", few)))
    theta, phi, g = (y.flatten(2) for y in (theta, phi, g))
    f = theta.mT @ phi
    f = (f * (INNER**-0.5 if use_scale else 1)).softmax(2) if softmax else f / f.shape[2]
    y = F.conv3d((g @ f.mT).reshape(len(x), INNER, *x.shape[2:]), part["out_w"], part["out_b"])
    each = {name: part[name].reshape(-1, 1, 1, 1) for name in part if name.startswith("bn_")}
    if "bn_rm" in each:
        y = (y - each["bn_rm"]) / (each["bn_riv"] + 1e-5).sqrt()
    return x + (y * each["bn_s"] + each["bn_b"] if each else y)


@pytest.mark.parametrize("kind", ["batch", "affine", "nothing"])
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("pooled", [True, False])
def test_the_authors(kind, softmax, pooled):
    blobs, x = blobs_of(kind), torch.randn(2, C, 2, 4, 6)
    block = caffe2_nonlocal(
        blobs,
        "nonlocal_conv3_1",
        "embedded_gaussian" if softmax else "dot_product",
        subsample=(1, 2, 2) if pooled else 1,
    )
    assert isinstance(block, NonLocal3d)
    assert isinstance(block.norm, nn.BatchNorm3d) == (kind == "batch")
    want = caffe2_forward(blobs, x, softmax, pooled=pooled)
    torch.testing.assert_close(block(x), want, rtol=1e-4, atol=1e-4)
    unscaled = caffe2_nonlocal(blobs, "nonlocal_conv3_1", scale=1.0)
    torch.testing.assert_close(unscaled(x), caffe2_forward(blobs, x, use_scale=False), rtol=1e-4, atol=1e-4)


def test_imported_blocks_can_be_trained_and_keep_their_dtype():
    block = mmcv_nonlocal({name: x.double() for name, x in mmcv_state("embedded_gaussian", 2).items()})
    assert block.g.weight.dtype == torch.float64
    block.train()(torch.randn(2, C, 4, 4).double()).square().sum().backward()
    assert all(p.grad is not None for p in block.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("g.conv.weight"), "expected g.conv.weight, as mmcv's block has it"),
        (lambda s: s.update({"conv_out.gn.weight": torch.ones(C)}), "^state: got conv_out.gn.weight, expected only"),
        (lambda s: s.update({"phi.conv.weight": torch.ones(5, C, 1, 1)}), r"^state: got phi.weight of shape \(5, 6\)"),
        (lambda s: s.update({"g.conv.weight": torch.ones(4, C, 3, 3)}), r"^state: got a g of shape \(4, 6, 3, 3\)"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    state = mmcv_state("embedded_gaussian", 2)
    change(state)
    with pytest.raises(ValueError, match=message):
        mmcv_nonlocal(state)


def test_other_mistakes_are_named():
    with pytest.raises(ValueError, match=r"^state: got nothing after 'layer9.'"):
        mmcv_nonlocal(mmcv_state("gaussian", 2), "layer9.")
    with pytest.raises(TypeError, match=r"^state: got str, expected tensors or arrays by name. Read the file first"):
        mmcv_nonlocal("block.pth")
    with pytest.raises(ValueError, match=r"^affinity: got 'gaussian'"):
        mmcv_nonlocal(mmcv_state("gaussian", 2), affinity="gaussian")
    with pytest.raises(ValueError, match=r"^blobs: got nonlocal_conv3_1_extra_w"):
        caffe2_nonlocal(blobs_of("batch") | {"nonlocal_conv3_1_extra_w": torch.ones(1)}, "nonlocal_conv3_1")
