"""Non-local blocks in networks of others: where they land, that nothing else changes, and what is refused."""

import copy
import importlib
import pickle

import pytest
import torch
from torch import nn

from regard.nn import NonLocal2d, NonLocal3d, insert_nonlocal


class Block(nn.Module):
    """A residual block with torchvision's names."""

    def __init__(self, inputs, outputs, conv=nn.Conv2d, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = conv(inputs, outputs // 2, 1)
        self.bn1 = norm(outputs // 2)
        self.conv2 = conv(outputs // 2, outputs, 3, padding=1)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential(conv(inputs, outputs, 1), norm(outputs)) if inputs != outputs else None

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, **kind):
        super().__init__()
        self.layer1 = nn.Sequential(Block(3, 4, **kind), Block(4, 4, **kind))
        self.layer2 = nn.Sequential(Block(4, 8, **kind), Block(8, 8, **kind))
        self.layer3 = nn.Sequential(Block(8, 12, **kind), Block(12, 12, **kind), Block(12, 12, **kind))

    def forward(self, x):
        return self.layer3(self.layer2(self.layer1(x)))


def hugging_face():
    transformers = importlib.import_module("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16], depths=[2, 2, 3], num_labels=2)
    return transformers.ResNetForImageClassification(config)


@pytest.mark.parametrize("affinity", ["gaussian", "embedded_gaussian", "dot_product", "concatenation"])
def test_torchvision_style(affinity):
    model = ResNet().eval()
    x = torch.randn(2, 3, 8, 8)
    before, keys = model(x), set(model.state_dict())
    assert insert_nonlocal(model, [(2, -2), "layer1.1"], affinity) == ["layer3.1_nonlocal", "layer1.1_nonlocal"]
    assert [n for n, _ in model.layer3.named_children()] == ["0", "1", "1_nonlocal", "2"]
    assert isinstance(model.layer3[2], NonLocal2d)
    assert (model.layer3[2].channels, model.layer1[2].channels) == (12, 4)
    assert torch.equal(model(x), before)
    assert keys < set(model.state_dict())


def test_hugging_face():
    model = hugging_face().eval()
    x = torch.randn(2, 3, 32, 32)
    before = model(x).logits
    names = insert_nonlocal(model, [(1, 0), (-1, -2)], "dot_product", subsample=2)
    assert names == ["resnet.encoder.stages.1.layers.0_nonlocal", "resnet.encoder.stages.2.layers.1_nonlocal"]
    assert torch.equal(model(x).logits, before)
    block = model.get_submodule(names[1])
    assert (block.channels, block.affinity, block.subsample) == (16, "dot_product", (2, 2))
    for p in block.parameters():
        nn.init.normal_(p, std=0.3)
    assert not torch.allclose(model(x).logits, before)


def test_the_block_runs_right_after_its_residual_block():
    model = ResNet().eval()
    insert_nonlocal(model, "layer3.1", norm=None)
    for p in model.get_submodule("layer3.1_nonlocal").parameters():
        nn.init.normal_(p)
    x = y = torch.randn(2, 8, 4, 4)
    for name in ("0", "1", "1_nonlocal", "2"):
        y = model.get_submodule(f"layer3.{name}")(y)
    assert torch.equal(model.layer3(x), y)


def test_an_old_checkpoint_loads():
    old, model = ResNet(), ResNet()
    names = insert_nonlocal(model)
    missing, unexpected = model.load_state_dict(old.state_dict(), strict=False)
    assert not unexpected
    assert all(key.startswith(names[0]) for key in missing)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model.eval()(x), old.eval()(x))


def test_copies_pickles_and_a_second_insertion():
    model = ResNet().double().eval()
    insert_nonlocal(model, (2, 0))
    assert insert_nonlocal(model, (2, 1)) == ["layer3.1_nonlocal"]
    assert not model.layer3[1].training
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


def test_the_kind_of_convolution_decides_the_dimension():
    model = ResNet(conv=nn.Conv3d, norm=nn.BatchNorm3d)
    insert_nonlocal(model, (0, 0), subsample=(1, 2, 2))
    assert isinstance(model.layer1[1], NonLocal3d)
    assert model(torch.randn(2, 3, 2, 4, 4)).shape == (2, 12, 2, 4, 4)


@pytest.mark.parametrize(
    ("after", "error", "message"),
    [
        ("layer9.0", ValueError, "^after: got 'layer9.0', .*Residual blocks here are layer1.0, layer1.1"),
        ("layer1.0.conv1", ValueError, "^after: got 'layer1.0.conv1' inside a Block"),
        ((3, 0), ValueError, r"^after: got \(3, 0\), expected one of 3 stages"),
        ((0, 2), ValueError, r"^after: got \(0, 2\), expected one of the 2 blocks of stage 0"),
        ([(0, 0), "layer1.0"], ValueError, "^after: got .*different residual blocks"),
        ([], ValueError, "^after: got no position"),
        ([3], TypeError, "^after: got 3, expected a name"),
    ],
)
def test_bad_positions_are_named_and_change_nothing(after, error, message):
    model = ResNet()
    keys = list(model.state_dict())
    with pytest.raises(error, match=message):
        insert_nonlocal(model, after)
    assert list(model.state_dict()) == keys


def test_other_errors():
    model = ResNet()
    insert_nonlocal(model, "layer1.0")
    for name in ("layer1.0", "layer1.0_nonlocal"):
        with pytest.raises(ValueError, match=f"^after: got '{name}', .* has a non-local block already"):
            insert_nonlocal(model, name)
    with pytest.raises(ValueError, match=r"^model: got Linear, expected a ResNet"):
        insert_nonlocal(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^after: got '0', a ReLU, expected a block with convolutions"):
        insert_nonlocal(nn.Sequential(nn.ReLU()), "0")
    with pytest.raises(TypeError, match=r"^model: got str"):
        insert_nonlocal("resnet50")
    with pytest.raises(ValueError, match=r"^affinity: got 'cosine'"):
        insert_nonlocal(ResNet(), affinity="cosine")
