"""Checkpoints in the layout of facebook's SwAV, against a plain twin that works on the names alone."""

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, linear, max_pool2d, normalize, pad, relu

from regard._problem import Problem
from regard.backbones import load_backbone, save_backbone
from regard.importers import read_swav


def checkpoint(stem=4, depths=(1, 2), hidden=6, dim=5, prototypes=(7,)):
    """Random weights by the names that their modules have."""
    weights = {}

    def put(name, *shape):
        weights[name] = torch.randn(*shape) * (2 / max(1, torch.Size(shape[1:]).numel())) ** 0.5

    def norm(name, width):
        put(f"{name}.weight", width)
        put(f"{name}.bias", width)
        put(f"{name}.running_mean", width)
        weights[f"{name}.running_var"] = torch.rand(width) + 0.5
        weights[f"{name}.num_batches_tracked"] = torch.tensor(3)

    put("conv1.weight", stem, 3, 7, 7)
    norm("bn1", stem)
    inputs = stem
    for i, depth in enumerate(depths):
        width = stem * 2**i
        for j in range(depth):
            place = f"layer{i + 1}.{j}"
            for k, shape in enumerate(((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)), start=1):
                put(f"{place}.conv{k}.weight", *shape)
                norm(f"{place}.bn{k}", shape[0])
            if j == 0:
                put(f"{place}.downsample.0.weight", 4 * width, inputs, 1, 1)
                norm(f"{place}.downsample.1", 4 * width)
            inputs = 4 * width
    put("projection_head.0.weight", hidden, inputs)
    put("projection_head.0.bias", hidden)
    norm("projection_head.1", hidden)
    put("projection_head.3.weight", dim, hidden)
    put("projection_head.3.bias", dim)
    if len(prototypes) == 1:
        put("prototypes.weight", prototypes[0], dim)
    else:
        for k, count in enumerate(prototypes):
            put(f"prototypes.prototypes{k}.weight", count, dim)
    return weights


def twin(weights, x, head="prototypes.weight", training=False):
    """Feature map, embedding and scores as their network gives them."""

    def norm(name, x, training=False):
        statistics = (weights[f"{name}.running_mean"].clone(), weights[f"{name}.running_var"].clone())
        return batch_norm(x, *statistics, weights[f"{name}.weight"], weights[f"{name}.bias"], training)

    x = conv2d(pad(x, (1, 1, 1, 1)), weights["conv1.weight"], stride=2, padding=2)
    x = max_pool2d(relu(norm("bn1", x)), 3, 2, 1)
    for stage in range(1, 5):
        for block in range(9):
            place = f"layer{stage}.{block}"
            if f"{place}.conv1.weight" not in weights:
                break
            stride = 2 if stage > 1 and block == 0 else 1
            y = relu(norm(f"{place}.bn1", conv2d(x, weights[f"{place}.conv1.weight"])))
            y = relu(norm(f"{place}.bn2", conv2d(y, weights[f"{place}.conv2.weight"], stride=stride, padding=1)))
            y = norm(f"{place}.bn3", conv2d(y, weights[f"{place}.conv3.weight"]))
            if block == 0:
                x = norm(f"{place}.downsample.1", conv2d(x, weights[f"{place}.downsample.0.weight"], stride=stride))
            x = relu(x + y)
    z = linear(x.mean((2, 3)), weights["projection_head.0.weight"], weights["projection_head.0.bias"])
    z = relu(norm("projection_head.1", z, training))
    z = normalize(linear(z, weights["projection_head.3.weight"], weights["projection_head.3.bias"]), dim=1)
    return x, z, z @ weights[head].T


@pytest.mark.parametrize("stem", [4, 8])
def test_outputs_are_those_of_the_original(tmp_path, stem):
    torch.manual_seed(0)
    weights = checkpoint(stem)
    named = {f"module.{name}": w for name, w in weights.items()}
    torch.save({"epoch": 1, "state_dict": named, "optimizer": {"state": {}}}, tmp_path / "whole.pth.tar")
    torch.save(named, tmp_path / "plain.pth.tar")
    x = torch.randn(3, 3, 33, 33)
    features, z, scores = twin(weights, x)
    for source in (tmp_path / "whole.pth.tar", tmp_path / "plain.pth.tar", weights):
        task = read_swav(source, size=33).eval()
        assert torch.allclose(task.backbone(x), features, atol=1e-4)
        assert torch.allclose(task.embed(x), z, atol=1e-5)
        assert torch.allclose(task.scores(task.embed(x)), scores, atol=1e-5)
    save_backbone(task.backbone, tmp_path / "backbone")
    assert torch.equal(load_backbone(tmp_path / "backbone").eval()(x), task.backbone(x))


def test_the_bias_before_the_norm_in_training():
    torch.manual_seed(0)
    weights = checkpoint()
    x = torch.randn(6, 3, 20, 20)
    task = read_swav(weights, size=20).eval()
    task.projection.train()
    assert torch.allclose(task.embed(x), twin(weights, x, training=True)[1], atol=1e-4)


def test_sets_of_prototypes():
    torch.manual_seed(0)
    weights = checkpoint(prototypes=(7, 9))
    x = torch.randn(2, 3, 20, 20)
    with pytest.raises(Problem, match=r"the sets 0, 1 of prototypes\. Choose one: head=0"):
        read_swav(weights)
    task = read_swav(weights, head=1, size=20).eval()
    expected = twin(weights, x, "prototypes.prototypes1.weight")[2]
    assert torch.allclose(task.scores(task.embed(x)), expected, atol=1e-5)
    with pytest.raises(Problem, match="Leave head out"):
        read_swav(checkpoint(), head=0)


def test_what_has_no_place_is_refused_by_name():
    weights = checkpoint()
    with pytest.raises(Problem, match=r"no place in facebook's SwAV: fc\.bias, fc\.weight"):
        read_swav(weights | {"fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)})
    with pytest.raises(Problem, match=r"layer2\.1\.se\.weight"):
        read_swav(weights | {"layer2.1.se.weight": torch.ones(2)})
    with pytest.raises(Problem, match=r"layer\.1\.normalization\.bias is missing"):
        read_swav({n: w for n, w in weights.items() if n != "layer1.0.bn2.bias"})
    with pytest.raises(Problem, match="projection_head is one layer"):
        read_swav(
            {n: w for n, w in weights.items() if "projection" not in n} | {"projection_head.weight": torch.ones(1)}
        )
    with pytest.raises(Problem, match=r"no weight prototypes\.weight"):
        read_swav({n: w for n, w in weights.items() if "prototypes" not in n})
