"""Non-local blocks of every affinity in backbones: made, saved, loaded, pretrained by command."""

import json
import sys
import warnings
from typing import get_args

import numpy
import pytest
import torch

from regard._problem import Problem
from regard.backbones import Backbone, fingerprint, load_backbone, make_backbone, save_backbone
from regard.backbones._files import untrained
from regard.backbones._known import NonLocalName
from regard.cli import main
from regard.nn import NonLocal2d
from regard.nn.non_local import PAIRWISE_NAMES
from regard.swav import preset

TINY = {"widths": [4, 8], "depths": [1, 2]}


def blocks(backbone):
    return {name: m for name, m in backbone.network.named_modules() if isinstance(m, NonLocal2d)}


def changed(backbone):
    """Every parameter moved, so that the blocks are not the identity that they start as."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return backbone.eval()


def test_the_names_are_those_of_the_blocks():
    assert get_args(NonLocalName) == PAIRWISE_NAMES


@pytest.mark.parametrize("affinity", PAIRWISE_NAMES)
def test_stored_with_the_backbone_and_read_back(affinity, tmp_path):
    made = changed(make_backbone("small", size=12, nonlocal_after=[(1, 0)], nonlocal_affinity=affinity, **TINY))
    assert [block.affinity for block in blocks(made).values()] == [affinity]
    again = load_backbone(save_backbone(made, tmp_path)).eval()
    assert [block.affinity for block in blocks(again).values()] == [affinity]
    assert (again.config, fingerprint(again)) == (made.config, fingerprint(made))
    x = torch.rand(2, 3, 12, 12)
    assert torch.equal(again(x), made(x))
    assert [block.affinity for block in blocks(untrained(made)).values()] == [affinity]
    assert Backbone.from_pretrained(tmp_path).config == made.config


def test_the_usual_affinity_is_written_as_before_there_was_a_choice():
    made = make_backbone("small", nonlocal_after=[(0, 0)], **TINY)
    assert "nonlocal_affinity" not in made.config
    named = make_backbone("small", nonlocal_after=[(0, 0)], nonlocal_affinity="embedded_gaussian", **TINY)
    assert named.config == made.config


def test_blocks_of_several_affinities(tmp_path):
    save_backbone(make_backbone("small", size=12, nonlocal_after=[(0, 0)], **TINY), tmp_path / "one")
    options = {"nonlocal_after": [(1, 1)], "nonlocal_affinity": "concatenation"}
    both = changed(make_backbone(str(tmp_path / "one"), **options))
    assert both.config["nonlocal_affinity"] == ["embedded_gaussian", "concatenation"]
    again = load_backbone(save_backbone(both, tmp_path / "two")).eval()
    kinds = {name: block.affinity for name, block in blocks(again).items()}
    assert kinds == {"layer1.0_nonlocal": "embedded_gaussian", "layer2.1_nonlocal": "concatenation"}
    x = torch.rand(1, 3, 12, 12)
    assert torch.equal(again(x), both(x))


@pytest.mark.parametrize("affinities", [["gaussian", "gaussian"], [], "gaussian", ["cosine"], [["gaussian"]]])
def test_a_config_that_does_not_fit_is_a_problem(affinities, tmp_path):
    save_backbone(make_backbone("small", nonlocal_after=[(0, 0)], nonlocal_affinity="gaussian", **TINY), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"nonlocal_affinity": affinities}))
    with pytest.raises(Problem, match=r"config.json is not whole"):
        load_backbone(tmp_path)


def test_an_affinity_without_blocks_is_refused():
    with pytest.raises(ValueError, match=r"^nonlocal_affinity: got 'gaussian', expected a place for its blocks"):
        make_backbone("small", nonlocal_affinity="gaussian", **TINY)
    with pytest.raises(ValueError, match=r"^affinity: got 'cosine'"):
        make_backbone("small", nonlocal_after=[(0, 0)], nonlocal_affinity="cosine", **TINY)
    with pytest.raises(Problem, match=r"^nonlocal_affinity 'gaussian' has no blocks to belong to"):
        preset("small", nonlocal_affinity="gaussian")


@pytest.mark.parametrize("affinity", PAIRWISE_NAMES)
def test_pretrained_by_command(affinity, tmp_path, monkeypatch, capsys):
    pictures = numpy.random.default_rng(0).integers(0, 256, (16, 12, 12, 3), dtype=numpy.uint8)
    numpy.save(tmp_path / "pictures.npy", pictures)
    out = tmp_path / "out"
    options = ["--backbone-options", json.dumps(TINY), "--nonlocal-after", "[[1, 0]]", "--nonlocal-affinity", affinity]
    sizes = ["--steps", "3", "--batch-size", "8", "--prototypes", "4", "--size", "12", "--local", "0", "--no-progress"]
    monkeypatch.setattr(sys, "argv", ["regard", "pretrain", str(tmp_path / "pictures.npy"), "--out", str(out)])
    sys.argv += [*options, *sizes]
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    backbone = load_backbone(out / "backbone")
    assert [block.affinity for block in blocks(backbone).values()] == [affinity]
    (block,) = blocks(backbone).values()
    assert float(block.norm.weight.detach().abs().max()) > 0  # it started at zero, so it was trained
