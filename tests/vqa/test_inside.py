"""The attentions inside the layers: every affinity with every map that suits it learns; the others are refused."""

import sys
from typing import get_args

import pytest
import torch

import regard
from regard.backbones import make_backbone
from regard.cli import main
from regard.nn import ContinuousSelfAttention, Gate, Learned, MultiheadAttention
from regard.scenes import Scenes, write_scenes
from regard.vqa.features import make_features
from regard.vqa.inside import LAYER_MAP_NAMES, AffinityName, layer_map_name, layer_parts
from regard.vqa.kinds import SelfAttentionName
from regard.vqa.mcan import MCAN
from regard.vqa.read import read_questions
from regard.vqa.settings import ModelSettings, small

AFFINITIES = get_args(AffinityName)
MAPS = (*LAYER_MAP_NAMES, "entmax-1.3")
ALLOWED = [(a, m) for a in AFFINITIES for m in MAPS if m != "gate" or a == "wasserstein"]
# Added to the scores of all cells or of all words: softmax does not depend on it.
NO_INFLUENCE = ("flat_picture.pool.score.3.bias", "flat_text.score.3.bias")
SIZES = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}


def tiny(**changes):
    torch.manual_seed(0)
    return MCAN(small(**(SIZES | changes)), vocabulary=20, answers=5, cells=(4, 4), features=12)


def batch(count=24):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(count, 4, 4, 12, generator=generator)
    words = torch.randint(1, 20, (count, 6), generator=generator)
    targets = torch.nn.functional.one_hot(torch.randint(0, 5, (count,), generator=generator), 5).float()
    return features, words, targets


@pytest.mark.parametrize(("affinity", "map_"), ALLOWED)
def test_the_loss_falls_and_the_gradient_reaches_every_parameter(affinity, map_):
    model = tiny(affinity=affinity, map=map_, before=1)
    features, words, targets = batch()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    losses = []
    for step in range(40):
        loss = model.loss(model(features, words).scores, targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.isfinite().all(), name
                assert parameter.grad.abs().max() > 0 or name in NO_INFLUENCE, name
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("affinity", "map_"), ALLOWED)
def test_names_are_stored_in_their_standard_form(affinity, map_):
    settings = ModelSettings(affinity=affinity, map=map_)
    assert (settings.affinity, settings.map) == (affinity, map_)
    assert ModelSettings(**settings.to_json()) == settings
    assert layer_map_name("entmax-1.50", affinity) == "entmax"


@pytest.mark.parametrize("affinity", [a for a in AFFINITIES if a != "wasserstein"])
def test_a_gate_needs_a_distance(affinity):
    with pytest.raises(ValueError, match=rf"^map: got 'gate' with the affinity '{affinity}', expected 'gate' with"):
        ModelSettings(affinity=affinity, map="gate")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"affinity": "general"},
            "^affinity: got 'general', expected one of 'dot', 'bilinear', 'additive', ",
        ),
        ({"map": "mean"}, "^map: got 'mean'"),
        ({"affinity": "wasserstein", "map": "gate-2"}, "^map: got 'gate-2'"),
        ({"affinity": "wasserstein", "width": 12, "heads": 4}, "^width: got 12 for 4 heads, expected an even number"),
        ({"width": 10, "heads": 4}, "^heads: got 4, expected a divisor of the width, 10"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_settings_are_made(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelSettings(**changes)


def test_a_bilinear_form_starts_as_the_scaled_dot_product():
    dot, bilinear = tiny().eval(), tiny(affinity="bilinear").eval()
    missing = bilinear.load_state_dict(dot.state_dict(), strict=False).missing_keys
    assert missing == [
        f"{layer}.affinity.weight"
        for layer in ("encoder.0.self_attn", "decoder.0.self_attn", "decoder.0.multihead_attn")
    ]
    features, words, _ = batch(3)
    assert torch.allclose(dot(features, words).scores, bilinear(features, words).scores, atol=1e-5)
    with torch.no_grad():
        bilinear.decoder[0].self_attn.affinity.weight.mul_(3)
    assert not torch.allclose(dot(features, words).scores, bilinear(features, words).scores, atol=1e-3)


@pytest.mark.parametrize(("affinity", "map_"), [("additive", "softmax"), ("wasserstein", "gate")])
def test_weights_of_a_layer_by_hand(affinity, map_):
    layer = tiny(affinity=affinity, map=map_).decoder[0].self_attn.double()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    missing = torch.tensor([[False, False, True, False, False]])
    _, got = layer(x, x, x, key_padding_mask=missing, average_attn_weights=False)
    q, k, _ = (x[0] @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, -1)
    expected = torch.zeros(2, 5, 5, dtype=torch.float64)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        for i in range(5):
            for j in range(5):
                a, b = q[i, part], k[j, part]
                if affinity == "additive":
                    expected[head, i, j] = layer.affinity.v[head] @ torch.tanh(a + b)
                else:
                    means = (a[:4] - b[:4]).square().sum()
                    scales = (torch.nn.functional.softplus(a[4:]) - torch.nn.functional.softplus(b[4:])).square().sum()
                    bias, tau = layer.map.bias[head], layer.map.log_tau[head].exp()
                    expected[head, i, j] = torch.sigmoid((bias - (means + scales).sqrt()) / tau)
    if affinity == "additive":
        expected = expected.masked_fill(missing, -torch.inf).softmax(-1)
    torch.testing.assert_close(got[0], expected.masked_fill(missing, 0))


def test_every_attention_has_its_own_parameters():
    model = tiny(affinity="wasserstein", map="gate", layers=2)
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    assert len({id(gate.bias) for gate in gates}) == len(gates) == 6
    model = tiny(affinity="additive", layers=2)
    learned = [module for module in model.modules() if isinstance(module, Learned)]
    assert len({id(one.v) for one in learned}) == len(learned) == 6
    assert layer_parts("wasserstein", "sparsemax", 16, 2).map == regard.Sparsemax()


@pytest.mark.parametrize(("affinity", "map_"), [("bilinear", "sparsemax"), ("wasserstein", "gate")])
def test_trained_by_command_and_loaded(affinity, map_, tmp_path, monkeypatch):
    for split in ("train", "val"):
        write_scenes(Scenes(split, 6, size=32), tmp_path / "scenes")
    pictures = read_questions(tmp_path / "scenes", "train").pictures
    backbone = make_backbone("small", size=32, widths=[8], depths=[1], stem_stride=4)
    make_features(tmp_path / "features", pictures, backbone, name="small")
    places = [str(tmp_path / "scenes"), "--features", str(tmp_path / "features"), "--out", str(tmp_path / "run")]
    options = ["--affinity", affinity, "--map", map_, "--epochs", "1", "--above", "0", "--no-progress"]
    monkeypatch.setattr(sys, "argv", ["regard", "train", *places, *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    model = MCAN.from_pretrained(tmp_path / "run")
    assert (model.settings.affinity, model.settings.map) == (affinity, map_)


def test_the_command_line_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regard", "train", str(tmp_path), "--affinity", "additive", "--map", "gate"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code
    said = f"{end.value.code}\n{capsys.readouterr().err}"
    assert said.startswith("regard: map: got 'gate' with the affinity 'additive'")
    assert said.count("\n") == 1


CONTINUOUS = [name for name in get_args(SelfAttentionName) if name != "discrete"]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_cells_with_a_density_each(name):
    model = tiny(self_attention=name, before=1, map="sparsemax")
    inside = [module for module in model.modules() if isinstance(module, ContinuousSelfAttention)]
    assert [module.alpha for module in inside] == [2 if "sparsemax" in name else 1] * 2
    assert isinstance(model.encoder[0].self_attn, MultiheadAttention)  # words have no place in the picture
    assert model.decoder[0].multihead_attn.map == model.encoder[0].self_attn.map == regard.Sparsemax()
    features, words, targets = batch()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    losses = []
    for step in range(40):
        loss = model.loss(model(features, words).scores, targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 1:  # at the first step the queries do not matter yet: the weights of their products start at zero
            for part, parameter in model.named_parameters():
                assert parameter.grad is not None, part
                assert parameter.grad.isfinite().all(), part
                assert parameter.grad.abs().max() > 0 or part in NO_INFLUENCE, part
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("cells", [(2, 5), (5, 2), (1, 7)])
def test_grids_of_any_shape_and_masks(cells):
    torch.manual_seed(0)
    settings = small(**SIZES, self_attention="continuous-softmax", before=1, guided_first=True)
    model = MCAN(settings, vocabulary=20, answers=5, cells=cells, features=6).double().eval()
    features, words = torch.randn(2, *cells, 6, dtype=torch.float64), torch.randint(1, 20, (3, 5))
    mask, rows = torch.ones(2, *cells, dtype=torch.bool), torch.tensor([1, 0, 1])
    mask[:, 0, 0] = mask[1, 0, 1] = False
    expected = model(features, words, rows, mask)
    for content in (0.0, 50.0, float("nan")):
        got = model(features.masked_fill(~mask.unsqueeze(-1), content), words, rows, mask)
        torch.testing.assert_close(got.scores, expected.scores)
    torch.testing.assert_close(
        model(features, words, rows, torch.ones_like(mask)).scores, model(features, words, rows).scores
    )
    nothing = model(features, words, rows, torch.zeros_like(mask)).scores
    assert nothing.isfinite().all()
    assert torch.equal(nothing[0], model(2 * features, words, rows, torch.zeros_like(mask)).scores[0])


def test_a_self_attention_needs_a_layer():
    with pytest.raises(ValueError, match=r"^self_attention: got 'continuous-softmax' with no layer on the picture"):
        ModelSettings(self_attention="continuous-softmax", layers=0)
    with pytest.raises(ValueError, match=r"^self_attention: got 'continuous', expected one of 'discrete', "):
        ModelSettings(self_attention="continuous")
    assert ModelSettings(self_attention="continuous-softmax", layers=0, before=1).before == 1


def test_saved_and_loaded(tmp_path):
    model = tiny(self_attention="continuous-sparsemax", affinity="additive").eval()
    features, words, _ = batch(2)
    model.save_pretrained(tmp_path)
    again = MCAN.from_pretrained(tmp_path)
    assert again.settings == model.settings
    torch.testing.assert_close(again(features, words).scores, model(features, words).scores)
