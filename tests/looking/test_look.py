"""`regard look`: pictures, tables and scores of tiny models, with and without a model."""

import csv
import json
import re
from importlib.resources import files

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

pytest.importorskip("transformers")
import transformers

from regard._problem import Problem
from regard.cli import application
from regard.hf import watch
from regard.looking import VisionModel, load_looking, look, read_pairs, score
from regard.pictures import read
from regard.scenes import Scenes, write_scenes

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CAT = files("regard") / "assets" / "cat.jpg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved classifier."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=3)
    model = transformers.ViTForImageClassification(config)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                x.normal_(std=0.5)
    place = tmp_path_factory.mktemp("model")
    model.save_pretrained(place)
    return place


def run(*arguments):
    return CliRunner().invoke(application("look"), [*map(str, arguments)])


def test_with_a_model(folder, tmp_path):
    result = run("look", folder, CAT, "--out", tmp_path / "look.png", "--map", "entmax-1.5")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "look.json").read_text())
    assert len(rows["rows"]) == 16
    assert {row["map"] for row in rows["rows"]} == {"model", "entmax-1.5"}
    assert set(rows["answers"]) == {"model", "entmax-1.5"}
    assert rows["rows"][8]["support"] < rows["rows"][0]["support"] <= rows["rows"][0]["of"] == 17
    with (tmp_path / "look.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 16
    with Image.open(tmp_path / "look.png") as picture:
        assert picture.width > picture.height / 3


def test_several_pictures_have_one_table(folder, tmp_path):
    other = tmp_path / "other.png"
    Image.new("RGB", (40, 30), (200, 10, 10)).save(other)
    result = run("look", folder, CAT, other, "--out", tmp_path / "look.png")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "look.json").read_text())
    assert [row["picture"] for row in written["rows"]] == [str(CAT)] * 8 + [str(other)] * 8
    assert written["rows"][0]["entropy"] != written["rows"][8]["entropy"]
    assert set(written["answers"]) == {str(CAT), str(other)}
    assert (tmp_path / "look-cat.png").exists()
    assert (tmp_path / "look-other.png").exists()
    assert not (tmp_path / "look.png").exists()
    result = run("look", CAT, other, "--out", tmp_path / "patches.png")
    assert result.exit_code == 0, result.output
    assert len(json.loads((tmp_path / "patches.json").read_text())["rows"]) == 6
    again = tmp_path / "cat.png"
    Image.new("RGB", (40, 30)).save(again)
    result = run("look", CAT, again, "--out", tmp_path / "same.png")
    assert isinstance(result.exception, Problem)
    assert "two pictures have the same name" in str(result.exception)


def test_panels_are_those_of_the_class_token(folder):
    model, picture = load_looking(str(folder)), read(CAT)
    looked = look(model, picture)
    assert list(looked.panels) == ["layer 0", "layer 1", "rollout"]
    with torch.no_grad(), watch(model.model, rows="cls") as seen:
        model.model(model.pixels(picture))
    expected = seen[1].pictures(seen[1].summary.rows)[0, 2, 0]
    torch.testing.assert_close(looked.panels["layer 1"]["head 2"], expected)
    torch.testing.assert_close(
        looked.panels["layer 1"]["mean"], seen[1].pictures(seen[1].summary.rows)[0, :, 0].mean(0)
    )
    assert looked.panels["rollout"]["all layers"].shape == (4, 4)
    assert looked.equal == pytest.approx((1 / 17, 1 / 17))


@pytest.mark.parametrize(
    "config",
    [
        transformers.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[2], num_heads=[2], window_size=4),
        transformers.SiglipVisionConfig(**SIZES, image_size=32, patch_size=8),
    ],
    ids=lambda config: config.model_type,
)
def test_models_without_a_class_token(config):
    model = VisionModel.of(transformers.AutoModel.from_config(config))
    looked = look(model, read(CAT))
    assert "rollout" not in looked.panels
    assert looked.panels["layer 0"]["mean"].sum() == pytest.approx(1.0, abs=1e-4)


def test_windows_of_several_stages_and_the_tower_of_a_model_of_text():
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    looked = look(VisionModel.of(transformers.AutoModel.from_config(config)), read(CAT))
    assert [looked.panels[f"layer {i}"]["mean"].shape for i in (0, 1)] == [(8, 8), (4, 4)]
    assert looked.equal == pytest.approx((1 / 64, 1 / 16))
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    tower = transformers.CLIPVisionConfig(**SIZES, image_size=32, patch_size=8)
    both = transformers.LlavaConfig(
        vision_config=tower, text_config=transformers.LlamaConfig(**text, vocab_size=40), image_token_index=39
    )
    looked = look(VisionModel.of(transformers.AutoModel.from_config(both)), read(CAT))
    assert list(looked.panels) == ["layer 0", "layer 1", "rollout"]


def test_without_a_model(tmp_path):
    result = run("look", CAT, "--out", tmp_path / "patches")
    assert result.exit_code == 0, result.output
    assert "sparsemax" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"patches.png", "patches.csv", "patches.json"}


TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "patch_size": 8}
CONV = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "image_size": 32}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.ViTConfig(**TINY, image_size=32, num_channels=1), "^this vit takes pictures of 1 channels"),
        (transformers.YolosConfig(**TINY, image_size=[32, 32]), "cannot watch yolos: .*tokens are not known.*tokens="),
        (transformers.ConvNextConfig(**CONV), "^regard look cannot watch convnext: .*expected attentions"),
        (transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4), "not a model of pict"),
    ],
    ids=lambda x: getattr(x, "model_type", ""),
)
def test_models_that_it_cannot_look_with_say_why(config, message):
    with pytest.raises(Problem, match=message):
        VisionModel.of(transformers.AutoModel.from_config(config))


@pytest.mark.parametrize("kind", ["swin", "beit"])
def test_a_model_in_half_precision_is_given_pictures_in_it(kind):
    config = {
        "swin": transformers.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1], num_heads=[2]),
        "beit": transformers.BeitConfig(**TINY, image_size=32),
    }[kind]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    expected = look(VisionModel.of(model), read(CAT)).panels["layer 0"]["mean"]
    got = look(VisionModel.of(model.bfloat16()), read(CAT)).panels["layer 0"]["mean"]
    torch.testing.assert_close(got.float(), expected, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("name", ["nonsense", "entmax--2", "normmax-1", "sinkhorn-0", "mean", "inverse", "tvmax"])
def test_a_map_that_cannot_be_exchanged_is_refused_before_the_model_is_loaded(name):
    result = run("look", "no/such-model", CAT, "--map", name)
    assert isinstance(result.exception, Problem)
    assert str(result.exception).startswith(f"--map {name}: ")


def test_words_see_those_before_them_alone_and_no_doubly_stochastic_map():
    result = run("look", "no/such-model", CAT, "--map", "sinkhorn", "--prompt", "what")
    assert re.match("--map sinkhorn: its weights depend on words that come later", str(result.exception))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jpg", CAT], "^missing.jpg is not a file"),
        ([CAT, "missing.jpg"], "^missing.jpg is not a file"),
        (["no/such-model", "missing.jpg"], "^missing.jpg is not a file"),
        ([CAT, "--masks", "masks"], "--masks needs a model"),
        ([CAT, "--prompt", "what"], "--prompt needs a model"),
        ([CAT, "--tower"], "--tower needs a model"),
        ([CAT, "--map", "sparsemax"], "--map needs a model"),
        (["no/such-model", CAT], "not in the local cache of Hugging Face.*--download"),
        (["missing.jpg"], "missing.jpg is not a file"),
        ([CAT, "--out", "look.json"], "--out look.json: a picture ends in one of .png"),
    ],
)
def test_problems(arguments, message):
    result = run("look", *arguments)
    assert isinstance(result.exception, Problem)
    assert re.search(message, str(result.exception))


def test_a_head_that_finds_objects_is_told_from_one_that_does_not(folder, tmp_path):
    """Pictures whose bright quarter is the region, masks as PNG and as boxes: the same table, and its chance level."""
    pictures, masks = tmp_path / "pictures", tmp_path / "masks"
    pictures.mkdir()
    masks.mkdir()
    images, annotations = [], []
    for i in range(4):
        x, y = 32 * (i % 2), 32 * (i // 2)
        picture, mask = Image.new("RGB", (64, 64)), Image.new("L", (64, 64))
        picture.paste((255, 255, 255), (x, y, x + 32, y + 32))
        mask.paste(7, (x, y, x + 32, y + 32))
        picture.save(pictures / f"{i}.png")
        mask.save(masks / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 64, "height": 64})
        annotations.append({"image_id": i, "bbox": [x, y, 32, 32]})
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"images": images, "annotations": annotations}))
    model = load_looking(str(folder))
    by_mask, by_box = (score(model, read_pairs(pictures, where)) for where in (masks, boxes))
    assert [one.row() for one in by_mask] == [one.row() for one in by_box]
    assert len(by_mask) == 8
    for one in by_mask:
        assert one.chance["mass"] == pytest.approx(0.25)
        assert one.interval["mass"][0] <= one.mean["mass"] <= one.interval["mass"][1]
    # By hand: the share of the class token's attention on patches that lies in the region.
    shares = []
    for pair in read_pairs(pictures, masks):
        region = pair.region[4::16, 4::16]  # the patches are a quarter of the side
        with torch.no_grad(), watch(model.model, rows="cls") as seen:
            model.model(model.pixels(read(pair.picture)))
        maps = seen[1].pictures(seen[1].summary.rows)[0, :, 0]
        shares.append((maps * region).sum((-2, -1)) / maps.sum((-2, -1)))
    expected = torch.stack(shares).mean(0)
    assert [one.mean["mass"] for one in by_mask[4:]] == pytest.approx(expected.tolist(), abs=1e-5)
    chosen = [pictures / "3.png", pictures / "1.png"]
    by_name = score(model, read_pairs(chosen, boxes))
    halves = [score(model, read_pairs([one], masks)) for one in chosen]
    assert by_name.pictures == 2
    for both, first, second in zip(by_name, *halves, strict=True):
        assert both.mean["mass"] == pytest.approx((first.mean["mass"] + second.mean["mass"]) / 2)
    result = run("look", folder, *chosen, "--masks", masks, "--out", tmp_path / "some.png")
    assert "Means over 2 pictures" in result.output
    assert json.loads((tmp_path / "some.json").read_text())["map"] == "model"
    written = json.loads((tmp_path / "some.json").read_text())["rows"][0]
    assert written["mass low"] <= written["mass"] <= written["mass high"]
    (pictures / "4.png").write_bytes((pictures / "0.png").read_bytes())
    with pytest.raises(Problem, match=r"4\.png has no region in .*masks"):
        read_pairs([*chosen, pictures / "4.png"], masks)
    with model.exchanged("sparsemax"):
        expected = [one.row() for one in score(model, read_pairs(chosen, masks))]
    under = score(model, read_pairs(chosen, masks), "sparsemax")
    assert [one.row() for one in under] == expected != [one.row() for one in by_name]
    assert "Means over 2 pictures, with sparsemax in every attention." in under.text()
    result = run("look", folder, pictures, "--masks", boxes, "--out", tmp_path / "scores.png")
    assert result.exit_code == 0, result.output
    assert "Means over 4 pictures" in result.output
    assert len(json.loads((tmp_path / "scores.json").read_text())["rows"]) == 8


def test_drawn_scenes_are_pictures_with_masks(folder, tmp_path):
    write_scenes(Scenes("val", 3, size=32), tmp_path)
    scores = score(load_looking(str(folder)), read_pairs(tmp_path / "val", tmp_path / "objects" / "val"))
    assert scores.pictures == 3
    assert all(0 < one.chance["mass"] < 1 for one in scores)


def test_regions_that_cannot_be_read(tmp_path):
    with pytest.raises(Problem, match="is not a folder of pictures"):
        read_pairs(tmp_path / "none", tmp_path)
    with pytest.raises(Problem, match="neither a folder nor a file"):
        read_pairs(tmp_path, tmp_path / "none")
    with pytest.raises(Problem, match="no picture of"):
        read_pairs(tmp_path, tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(Problem, match="not COCO-like JSON"):
        read_pairs(tmp_path, tmp_path / "bad.json")


def test_outlines_and_boxes_as_yolo_has_them(tmp_path):
    pictures, labels = tmp_path / "pictures", tmp_path / "labels"
    pictures.mkdir()
    labels.mkdir()
    for name in ("box", "outline", "both", "none"):
        Image.new("RGB", (40, 20)).save(pictures / f"{name}.png")
    (labels / "box.txt").write_text("3 0.25 0.5 0.5 1.0\n")  # the left half
    (labels / "outline.txt").write_text("3 0.5 0 1 0 1 1 0.5 1\n\n")  # the right half
    (labels / "both.txt").write_text("3 0.125 0.5 0.25 1.0\n7 0.875 0.5 0.25 1.0\n")
    (labels / "none.txt").write_text("")
    found = {pair.picture.stem: pair.region for pair in read_pairs(pictures, labels)}
    assert set(found) == {"box", "outline", "both"}  # one without a region is left out
    assert found["box"].shape == (20, 40)
    assert found["box"][:, :20].all()
    assert not found["box"][:, 20:].any()
    assert torch.equal(found["outline"], ~found["box"])
    assert found["both"].float().mean(0).tolist() == [1.0] * 10 + [0.0] * 20 + [1.0] * 10
    Image.new("L", (40, 20), 1).save(labels / "box.png")
    assert read_pairs([pictures / "box.png"], labels)[0].region.all()  # a mask comes first
    (labels / "both.txt").write_text("3 0.1 0.1 0.2 0.2\n3 0.1 0.2 0.3\n")
    with pytest.raises(Problem, match=r"both\.txt, line 2: expected a class, then x and y of corners, or a box"):
        read_pairs(pictures, labels)
