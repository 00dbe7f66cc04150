"""Models of pictures and text, saved in a folder with their processors: the last token of the prompt on the picture."""

import json
from importlib.resources import files

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("transformers")
import transformers
from test_hf_watch import make
from tokenizers import Tokenizer, models, pre_tokenizers

from regard._problem import Problem
from regard.cli import application
from regard.looking import load_looking, look, read_pairs, score
from regard.pictures import read
from regard.scenes import Scenes, write_scenes

CAT = files("regard") / "assets" / "cat.jpg"
SPECIAL = {36: "<|vision_end|>", 37: "<|vision_start|>", 38: "<|video_pad|>", 39: "<|image_pad|>"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEMPLATE = (
    "{% for m in messages %}[USER] {% for c in m['content'] %}{% if c['type'] == 'image' %}<|image_pad|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %} z{% endif %}"
)


def save(family, folder):
    """A tiny random model of a family with its tokenizer and image processor."""
    model, _ = make(family, "sdpa")
    model.save_pretrained(folder)
    vocabulary = {SPECIAL.get(i, LETTERS[i - 3] if 3 <= i < 29 else f"[{i}]"): i for i in range(40)}
    if family == "llava":
        tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="[0]"))
        tokens.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokens, unk_token="[0]", additional_special_tokens=list(SPECIAL.values())
        )
        cutter = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    else:
        tokenizer = transformers.Qwen2Tokenizer(
            vocab=vocabulary,
            merges=[],
            unk_token="[0]",
            eos_token="[2]",
            pad_token="[0]",
            additional_special_tokens=list(SPECIAL.values()),
        )
        cutter = transformers.Qwen2VLImageProcessorPil(
            patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 64, "longest_edge": 1024}
        )
    tokenizer.save_pretrained(folder)
    cutter.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=["llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def saved(request, tmp_path_factory):
    """The family, the folder and the model."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, save(request.param, folder)


def run(*arguments):
    return CliRunner().invoke(application("look"), [*map(str, arguments)])


def image_tokens(ids):
    return [i for i, token in enumerate(ids) if token == 39]


def test_panels_are_the_weights_of_the_last_token_on_the_picture(saved):
    family, folder, _ = saved
    asked = load_looking(str(folder), prompt="w h a t")
    inputs = asked.inputs(read(CAT))
    places = image_tokens(inputs["input_ids"][0].tolist())
    grid = (4, 4) if family == "llava" else tuple(int(n) // 2 for n in inputs["image_grid_thw"][0, 1:])
    assert len(places) == grid[0] * grid[1]
    assert asked.tokenizer.decode(inputs["input_ids"][0, -1:]).strip() == "t"
    looked = look(asked, read(CAT))
    asked.model.set_attn_implementation("eager")
    with torch.no_grad():
        out = asked.model(**inputs, output_attentions=True)
    assert list(looked.panels) == ["layer 0", "layer 1", "rollout"]
    joint = torch.eye(len(inputs["input_ids"][0]))
    assert looked.equal == pytest.approx((1 / len(joint),) * 2)  # words are keys too
    for layer, weights in enumerate(out.attentions):
        on_picture = weights[0, :, -1, places].reshape(4, *grid)
        panels = looked.panels[f"layer {layer}"]
        drawn = torch.stack([panels[f"head {head}"] for head in range(4)])
        torch.testing.assert_close(drawn, on_picture, atol=1e-5, rtol=0)
        torch.testing.assert_close(panels["mean"], on_picture.mean(0), atol=1e-5, rtol=0)
        row = looked.table[4 * layer + 2]
        assert row["on patches"] == pytest.approx(float(on_picture[2].sum()), abs=1e-5)
        entropy = torch.special.entr(weights[0, 2, -1]).sum()
        assert row["entropy"] == pytest.approx(float(entropy), abs=1e-4)
        assert row["effective"] == pytest.approx(float(entropy.exp()), rel=1e-3)
        assert row["on patches of equal weights"] == pytest.approx(len(places) / len(joint))
        joint = (0.5 * torch.eye(len(joint)) + 0.5 * weights[0].mean(0)) @ joint
    rolled = joint[-1, places].reshape(grid)
    torch.testing.assert_close(looked.panels["rollout"]["all layers"], rolled, atol=1e-5, rtol=0)
    likeliest = asked.tokenizer.decode([int(out.logits[0, -1].argmax())])
    assert next(iter(looked.answers["model"])) == likeliest


def test_on_the_command_line(saved, tmp_path):
    _, folder, _ = saved
    out = tmp_path / "look.png"
    result = run("look", folder, CAT, "--prompt", "w h a t", "--map", "entmax-1.5", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.exists()
    written = json.loads(out.with_suffix(".json").read_text())
    assert len(written["rows"]) == 16
    assert written["answers"]["model"] != written["answers"]["entmax-1.5"]
    assert written["rows"][8]["support"] < written["rows"][0]["support"]
    result = run("look", folder, CAT)
    assert isinstance(result.exception, Problem)
    assert "is a model of pictures and text: --prompt TEXT" in str(result.exception)
    result = run("look", folder, CAT, "--prompt", "a", "--tower")
    assert "the vision tower takes no words" in str(result.exception)
    result = run("look", folder, CAT, "--prompt", " ")
    assert "has no words" in str(result.exception)


def test_the_tower_alone_in_its_own_folder_or_inside_the_model(saved, tmp_path):
    family, folder, model = saved
    tower = model.model.vision_tower if family == "llava" else model.model.visual
    tower.save_pretrained(tmp_path)
    for file in folder.glob("preprocessor_config.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    alone, inside = load_looking(str(tmp_path)), load_looking(str(folder), tower=True)
    first, second = look(alone, read(CAT)), look(inside, read(CAT))
    assert [name for name in first.panels if name != "rollout"] == ["layer 0", "layer 1"]
    for name, row in first.panels.items():
        for title, panel in row.items():
            torch.testing.assert_close(panel, second.panels[name][title])
    if family != "llava":  # every patch of the picture looks somewhere, whatever window it lies in
        assert first.panels["layer 0"]["mean"].shape == (6, 8)
        assert first.panels["layer 0"]["mean"].sum() == pytest.approx(1.0, abs=1e-5)
        assert (first.panels["layer 0"]["mean"] > 0).all()
        view = alone.view(read(CAT))
        assert len(view.layers) == 2
        for place in ((0.05, 0.05), (0.95, 0.95)):
            chosen = view.head_scores(0, place)
            torch.testing.assert_close(chosen.weights.sum((1, 2)), torch.ones(4))
            assert torch.equal(chosen.weights > 0, chosen.scores > -torch.inf)


def test_a_prompt_is_written_as_the_model_wants_it(saved):
    family, folder, _ = saved
    asked = load_looking(str(folder), prompt="a")
    before, after = ("", "") if family == "llava" else ("<|vision_start|>", "<|vision_end|>")
    assert asked.text() == f"{before}<|image_pad|>{after}\na"
    asked.tokenizer.chat_template = TEMPLATE
    assert asked.text() == "[USER] <|image_pad|>a z"
    whole = load_looking(str(folder), prompt="b<|image_pad|>a")
    assert whole.text() == "b<|image_pad|>a"
    twice = load_looking(str(folder), prompt="<|image_pad|><|image_pad|>")
    with pytest.raises(Problem, match=r"token of a picture, '<\|image_pad\|>', 2 times; expected once"):
        twice.inputs(read(CAT))


def test_heads_are_scored_with_a_prompt(saved, tmp_path):
    _, folder, _ = saved
    write_scenes(Scenes("val", 2, size=32), tmp_path)
    scores = score(load_looking(str(folder), prompt="a b"), read_pairs(tmp_path / "val", tmp_path / "objects" / "val"))
    assert [(one.layer, one.head) for one in scores] == [(i, h) for i in range(2) for h in range(4)]
    assert all(0 < one.chance["mass"] < 1 for one in scores)


def test_models_that_take_no_prompt(tmp_path):
    model, _ = make("vit", "sdpa")
    model.save_pretrained(tmp_path)
    for options in (["--prompt", "a"], ["--tower"]):
        result = run("look", tmp_path, CAT, *options)
        assert isinstance(result.exception, Problem)
        assert f"{options[0]} is for models of pictures and text" in str(result.exception)


def test_a_model_without_its_tokenizer(tmp_path):
    model, _ = make("qwen2_vl", "sdpa")
    model.save_pretrained(tmp_path)
    with pytest.raises(Problem, match=r"has no tokenizer beside the model|cannot load it"):
        load_looking(str(tmp_path), prompt="a")
