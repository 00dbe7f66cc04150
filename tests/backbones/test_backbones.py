"""Backbones: shapes, saving and loading with nothing lost, and what is refused."""

import json

import pytest
import torch
from torch import nn

from regard._problem import Problem
from regard.backbones import (
    Backbone,
    Preparation,
    SmallResNet,
    fingerprint,
    load_backbone,
    make_backbone,
    save_backbone,
)
from regard.nn import NonLocal2d

TINY = {"widths": [4, 8], "depths": [1, 2]}


def trained(backbone):
    """Other numbers everywhere, also in the statistics of the norms."""
    for tensor in backbone.network.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.1)
    return backbone


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("stride", [1, 2])
def test_small_resnet_halves_at_every_stage_but_the_first(norm, stride):
    net = SmallResNet((4, 6, 12), (1, 2, 1), stem_stride=stride, norm=norm)
    assert net(torch.rand(2, 3, 16, 24)).shape == (2, 12, 4 // stride, 6 // stride)


def test_small_resnet_refuses_nonsense():
    with pytest.raises(ValueError, match="depths"):
        SmallResNet((4, 8), (1,))
    with pytest.raises(ValueError, match="norm"):
        SmallResNet(norm="layer")


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_saved_and_loaded(tmp_path, norm):
    backbone = trained(make_backbone("small", size=12, norm=norm, nonlocal_after=[(0, 0)], **TINY))
    assert any(isinstance(m, NonLocal2d) for m in backbone.modules())
    again = load_backbone(save_backbone(backbone, tmp_path / "b"))
    assert fingerprint(again) == fingerprint(backbone)
    assert again.config == backbone.config
    x = torch.rand(2, 3, 12, 12)
    assert torch.equal(again.eval()(x), backbone.eval()(x))


def test_a_fingerprint_follows_weights_and_config():
    one = make_backbone("small", **TINY)
    two = make_backbone("small", size=48, **TINY)
    two.load_state_dict(one.state_dict())
    assert fingerprint(one) != fingerprint(two)
    before = fingerprint(one)
    with torch.no_grad():
        one.network.stem[0].weight[0, 0, 0, 0] += 1e-6
    assert fingerprint(one) != before


def test_weights_load_with_plain_torch(tmp_path):
    from safetensors.torch import load_file

    backbone = trained(make_backbone("small", **TINY))
    save_backbone(backbone, tmp_path)
    options = json.loads((tmp_path / "config.json").read_text())["options"]
    network = SmallResNet(**options)
    network.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x = torch.rand(1, 3, 8, 8)
    assert torch.equal(network.eval()(x), backbone.eval()(x))


def test_by_the_folder_of_a_run(tmp_path):
    backbone = trained(make_backbone("small", size=12, **TINY))
    save_backbone(backbone, tmp_path / "backbone")
    (tmp_path / "config.json").write_text(json.dumps({"kind": "swav"}))  # as a run of pretrain has it
    for made in (make_backbone(str(tmp_path)), load_backbone(tmp_path), make_backbone(str(tmp_path / "backbone"))):
        assert fingerprint(made) == fingerprint(backbone)
    fresh = make_backbone(str(tmp_path), size=16, pretrained=False)
    assert fresh.preparation.size == 16
    pairs = list(zip(fresh.parameters(), backbone.parameters(), strict=True))
    assert all(new.shape == old.shape for new, old in pairs)
    assert not any(torch.equal(new, old) for new, old in pairs if new.dim() > 1)
    (tmp_path / "backbone" / "config.json").unlink()
    with pytest.raises(Problem, match="swav"):
        load_backbone(tmp_path)


def test_a_transformers_backbone_loads_with_transformers_too(tmp_path):
    from transformers import AutoModel, ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "theirs")
    backbone = trained(make_backbone(str(tmp_path / "theirs"), size=32)).eval()
    assert backbone.dim == 8
    save_backbone(backbone, tmp_path / "ours")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = backbone(x)
        assert torch.equal(load_backbone(tmp_path / "ours").eval()(x), expected)
        theirs = AutoModel.from_pretrained(tmp_path / "ours").eval()
        assert torch.equal(theirs(x).last_hidden_state, expected)
        with_blocks = make_backbone(str(tmp_path / "theirs"), nonlocal_after=[(1, 0)], pretrained=False)
        save_backbone(with_blocks, tmp_path / "blocks")
        assert fingerprint(load_backbone(tmp_path / "blocks")) == fingerprint(with_blocks)


def test_tokens_become_a_map():
    class Tokens(nn.Module):
        def __init__(self, special):
            super().__init__()
            self.special = special

        def forward(self, x):
            patches = nn.functional.avg_pool2d(x, 4).flatten(2).mT
            return torch.cat([torch.zeros(len(x), self.special, 3), patches], 1)

    x = torch.rand(2, 3, 16, 16)
    for special in (0, 1):
        backbone = Backbone(Tokens(special), Preparation(16))
        assert backbone.dim == 3
        assert torch.allclose(backbone(x), nn.functional.avg_pool2d(x, 4))
    with pytest.raises(Problem, match="not a feature map"):
        Backbone(nn.Flatten(), Preparation(16))


def test_stages_of_one_pass():
    """They are what each stage gives, in order; the last is the feature map; nothing is hooked into the network."""
    backbone = make_backbone("small", size=16, widths=[4, 6, 8], depths=[1, 2, 1], nonlocal_after=[(1, 0)]).eval()
    x = torch.rand(2, 3, 16, 16)
    y, expected = backbone.network.stem(x), []
    for stage in (backbone.network.layer1, backbone.network.layer2, backbone.network.layer3):
        y = stage(y)
        expected.append(y)
    got = backbone.stages(x)
    assert len(got) == 3
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(got[-1], backbone(x))


def test_stages_of_a_transformers_model(tmp_path):
    from transformers import ResNetConfig, ResNetModel, ViTConfig, ViTModel

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "resnet")
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(image_size=32, patch_size=8, **sizes)).save_pretrained(tmp_path / "vit")
    x = torch.rand(2, 3, 32, 32)
    for name, shapes in (("resnet", [(2, 4, 8, 8), (2, 8, 4, 4)]), ("vit", [(2, 8, 4, 4)] * 3)):
        backbone = make_backbone(str(tmp_path / name), size=32).eval()
        maps = backbone.stages(x)
        assert [m.shape for m in maps] == shapes
        assert torch.equal(maps[-1], backbone(x))
    network = make_backbone(str(tmp_path / "resnet"), size=32).eval()
    first = network.network.encoder.stages[0](network.network.embedder(x))
    assert torch.equal(network.stages(x)[0], first)


def test_stages_of_a_given_module():
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
    backbone, x = Backbone(network, Preparation(8)), torch.rand(1, 3, 8, 8)
    with pytest.raises(Problem, match=r"Sequential does not give its stages.* a method stages\(x\)"):
        backbone.stages(x)

    class Given(nn.Sequential):
        def stages(self, x):
            return [x := part(x) for part in self]

    assert [m.shape[1] for m in Backbone(Given(*network), Preparation(8)).stages(x)] == [5, 5]


def test_a_given_module_needs_the_module_again(tmp_path):
    backbone = trained(Backbone(SmallResNet(**TINY), Preparation(8)))
    save_backbone(backbone, tmp_path)
    with pytest.raises(Problem, match="given as a module"):
        load_backbone(tmp_path)
    assert fingerprint(load_backbone(tmp_path, SmallResNet(**TINY))) == fingerprint(backbone)


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(Problem, match="regard pretrain"):
        load_backbone(tmp_path / "gone")
    with pytest.raises(Problem, match=r"config\.json"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text('{"kind": "vqa"}')
    with pytest.raises(Problem, match="holds a vqa"):
        load_backbone(tmp_path)
    save_backbone(make_backbone("small", **TINY), tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9])
    with pytest.raises(Problem, match="broken"):
        load_backbone(tmp_path)
    weights.unlink()
    with pytest.raises(Problem, match="missing"):
        load_backbone(tmp_path)
    save_backbone(make_backbone("small", widths=[4, 12], depths=[1, 2]), tmp_path / "other")
    weights.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(Problem, match="another model"):
        load_backbone(tmp_path)
    with pytest.raises(Problem, match="only the built-in"):
        make_backbone(str(tmp_path), widths=[3])


def test_preparation():
    flat = Preparation(4, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert torch.allclose(flat(torch.ones(1, 3, 9, 7)), torch.tensor(2.0))
    assert flat(torch.full((1, 3, 9, 7), 255, dtype=torch.uint8)).shape == (1, 3, 4, 4)
    with pytest.raises(ValueError, match="std"):
        Preparation(4, std=(1, 1, 0))


@pytest.mark.parametrize(
    ("number", "parameters", "dim"),
    [
        (18, 11_689_512 - 513_000, 512),
        (34, 21_797_672 - 513_000, 512),
        (50, 25_557_032 - 2_049_000, 2048),
        (101, 44_549_160 - 2_049_000, 2048),
        (152, 60_192_808 - 2_049_000, 2048),
    ],
)
def test_a_residual_network_without_weights_needs_no_network(monkeypatch, number, parameters, dim):
    """The published numbers of parameters, less those of the classifier."""
    from transformers import AutoConfig

    def refuse(*_, **__):
        raise AssertionError("a file was asked for")

    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    with torch.device("meta"):
        backbone = make_backbone(f"microsoft/resnet-{number}", pretrained=False)
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    assert (backbone.dim, backbone.preparation.size) == (dim, 224)
    with pytest.raises(AssertionError, match="asked for"):  # weights are files
        make_backbone(f"microsoft/resnet-{number}")
