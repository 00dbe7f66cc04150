"""Regions of one's own: masks of any shape and mode, in a column, in annotations or in a folder; what is missing."""

import json

import numpy
import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.vqa.blind import blind_quality, centred_blob
from regard.vqa.masks import check_folder
from regard.vqa.read import read_questions
from regard.vqa.records import Record, Skipped
from regard.vqa.regions import MASK_SIDE, Regions


def save(path, array, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(numpy.asarray(array))
    (image if mode is None else image.convert(mode)).save(path)
    return path


def half(height, width, value=255):
    """A mask of the left half."""
    array = numpy.zeros((height, width), dtype=numpy.uint8)
    array[:, : width // 2] = value
    return array


def regions_of(questions, objects=None, masks=None):
    skipped = Skipped()
    return Regions(questions, objects or {}, masks or {}, skipped), skipped


def ask(number, *regions, picture="a"):
    return Record(number, picture, "What?", ("x",), regions=tuple(regions))


@pytest.mark.parametrize("mode", ["0 to 255", "0 and 1", "noisy", "RGB", "alpha", "palette", "one bit", "16 bits"])
def test_what_a_mask_marks(tmp_path, mode):
    array = half(12, 16)
    path = tmp_path / "mask.png"
    if mode == "0 and 1":
        save(path, array // 255)
    elif mode == "noisy":  # as JPEG writes it
        save(path, numpy.where(array > 0, 250, 4).astype(numpy.uint8))
    elif mode == "RGB":
        save(path, array, "RGB")
    elif mode == "alpha":
        save(path, numpy.stack([numpy.full_like(array, 255)] * 3 + [array], -1))
    elif mode == "palette":
        image = Image.fromarray(array // 255).convert("P")
        image.putpalette([255, 255, 255, 0, 0, 0])  # the region is black
        image.save(path)
    elif mode == "one bit":
        Image.fromarray(array).convert("1").save(path)
    elif mode == "16 bits":
        save(path, array.astype(numpy.uint16) * 200)
    else:
        save(path, array)
    regions, skipped = regions_of([ask(1, "m")], masks={"m": path})
    assert torch.equal(regions([ask(1, "m")])[0], torch.from_numpy(array > 0))
    assert not skipped


def test_masks_of_other_shapes_are_resampled_by_the_nearest_pixel(tmp_path):
    shapes = {"a": (500, 300), "b": (40, 60), "c": (3, 4)}
    masks = {name: save(tmp_path / f"{name}.png", half(*shape)) for name, shape in shapes.items()}
    questions = [ask(i, name) for i, name in enumerate(shapes)]
    regions, _ = regions_of(questions, masks=masks)
    assert regions.size == (MASK_SIDE, MASK_SIDE)
    for found in regions(questions):
        assert torch.equal(found, torch.from_numpy(half(MASK_SIDE, MASK_SIDE) > 0))
    # As large as the largest, if they are small: masks of one size stay as they are.
    regions, _ = regions_of(questions[1:], masks=masks)
    assert regions.size == (40, 60)
    assert torch.equal(regions(questions[1:2])[0], torch.from_numpy(half(40, 60) > 0))


def test_a_region_too_thin_to_be_resampled_is_kept(tmp_path):
    thin = numpy.zeros((1000, 1000), dtype=numpy.uint8)
    thin[:, 401] = 255  # no pixel of the small mask has its centre here
    regions, _ = regions_of([ask(1, "m")], masks={"m": save(tmp_path / "m.png", thin)})
    found = regions([ask(1, "m")])[0]
    assert found.any(1).all()
    assert found.sum(1).max() == 1
    assert found[0].nonzero().item() == 401 * MASK_SIDE // 1000


def test_several_masks_numbers_and_a_cache(tmp_path):
    numbers = numpy.arange(12, dtype=numpy.uint8).reshape(3, 4)
    objects = {"a": save(tmp_path / "a.png", numbers), "b": save(tmp_path / "b.png", 11 - numbers)}
    masks = {"m": save(tmp_path / "m.png", half(3, 4))}
    questions = [ask(1, 3, 5), ask(2, "m", 7), ask(3, 3, 5, picture="b"), ask(4)]
    regions, _ = regions_of(questions, objects, masks)
    expected = [
        numpy.isin(numbers, [3, 5]),
        (half(3, 4) > 0) | (numbers == 7),
        numpy.isin(11 - numbers, [3, 5]),
        numpy.zeros((3, 4), bool),
    ]
    for _ in range(2):
        assert torch.equal(regions(questions), torch.from_numpy(numpy.stack(expected)))
        for path in (*objects.values(), *masks.values()):
            path.unlink(missing_ok=True)  # the second time they are in memory


def test_a_mask_that_cannot_be_read_is_named_and_left_out(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    masks = {"bad": tmp_path / "bad.png", "m": save(tmp_path / "m.png", half(4, 4))}
    objects = {"a": save(tmp_path / "colours.png", half(4, 4), "RGB")}
    questions = [ask(1, "bad"), ask(2, "m"), ask(3, 1), ask(4, "bad")]
    regions, skipped = regions_of(questions, objects, masks)
    assert regions(questions).flatten(1).any(1).tolist() == [False, True, False, False]
    said = str(skipped)
    assert said.count("bad.png cannot be read as a mask") == 1
    assert "colours.png has colours" in said


def table(folder, rows, name="own.jsonl"):
    path = folder / name
    if name.endswith("csv"):
        columns = list(rows[0])
        lines = [";".join(columns), *(";".join(str(row.get(c, "")) for c in columns) for row in rows)]
        path.write_text("\n".join(lines))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["own.jsonl", "own.csv"])
def test_a_column_of_masks(tmp_path, name):
    save(tmp_path / "photos" / "a.jpg", half(8, 8))
    save(tmp_path / "photos" / "near.png", half(8, 8))
    save(tmp_path / "masks" / "a.png", half(8, 8))
    names = ["masks/a.png", r"masks\a", "near.png|masks/a.png", "gone.png", ""]
    if name == "own.jsonl":
        names = [names[0], names[1], names[2].split("|"), names[3], None]
    rows = [{"image": "a.jpg", "question": f"Why {i}?", "answer": "x", "Mask": n} for i, n in enumerate(names)]
    records = read_questions(table(tmp_path, rows, name), pictures=tmp_path / "photos")
    assert [r.regions for r in records.records] == [
        ("masks/a.png",), ("masks/a",), ("near.png", "masks/a.png"), None, None,
    ]  # fmt: skip
    assert records.masks["masks/a"] == tmp_path / "masks" / "a.png"
    assert str(records.skipped).startswith("Skipped: 1 region without a mask\n")
    assert "gone.png" in str(records.skipped)
    assert set(records.keep_answered().masks) == set(records.masks)


def test_a_folder_of_masks_with_the_names_of_the_pictures(tmp_path):
    for picture in ("a.jpg", "cats/b.jpg", "c.jpg"):
        save(tmp_path / picture, half(8, 8))
    save(tmp_path / "masks" / "a.png", half(8, 8))
    save(tmp_path / "masks" / "b.webp", half(8, 8))
    rows = [{"picture": p, "question": "Why?"} for p in ("a.jpg", "cats/b.jpg", "c.jpg", "c.jpg")]
    rows.append({"picture": "a.jpg", "question": "Whose?", "regions": "b.webp"})
    path = table(tmp_path, rows)
    records = read_questions(path, regions=tmp_path / "masks")
    assert [r.regions for r in records.records] == [("a",), ("b",), None, None, ("b.webp",)]
    assert str(records.skipped) == (f"Skipped: 1 picture without a mask\n  c.jpg: no c.png in {tmp_path / 'masks'}")
    assert [r.regions for r in read_questions(path).records[:4]] == [None] * 4
    with pytest.raises(Problem, match=r"--regions .*nowhere is not a folder"):
        check_folder("--regions", tmp_path / "nowhere")


def test_annotations_name_objects_or_masks(tmp_path):
    stem = "COCO_val2014_000000000001"
    save(tmp_path / f"{stem}.png", half(8, 8))
    save(tmp_path / "m.png", half(8, 8))
    questions = [{"image_id": 1, "question": "What?", "question_id": i} for i in range(5)]
    regions = [[1], ["m.png"], ["gone.png"], [], "m.png"]
    annotations = [{"question_id": i, "answers": ["x"], "regions": r} for i, r in enumerate(regions)]
    for what, content in (("questions", questions), ("annotations", annotations)):
        (tmp_path / f"v2_val2014_{what}.json").write_text(json.dumps({"data_subtype": "val2014", what: content}))
    read = read_questions(tmp_path, "val")
    assert [r.regions for r in read.records] == [None, ("m.png",), None, (), ("m.png",)]
    assert f"question 0 of val: no picture of the objects in {stem}" in str(read.skipped)
    assert "question 2 of val: no mask" in str(read.skipped)
    save(tmp_path / "objects" / "val2014" / f"{stem}.png", half(8, 8, value=1))
    assert read_questions(tmp_path, "val").records[0].regions == (1,)
    save(tmp_path / "elsewhere" / f"{stem}.png", half(8, 8, value=1))
    elsewhere = read_questions(tmp_path, "val", regions=tmp_path / "elsewhere")
    assert elsewhere.objects[stem] == tmp_path / "elsewhere" / f"{stem}.png"
    assert elsewhere.records[0].regions == (1,)


class Asked:
    """Examples with regions, as `blind_quality` takes them."""

    def __init__(self, masks, questions):
        self.masks, self.questions, self.has_regions = masks, questions, bool(len(masks))

    def __len__(self):
        return len(self.questions)

    def regions(self, indices):
        return self.masks[indices]


def test_attention_that_does_not_look():
    """Its numbers for a region in the middle, one in a corner, and none."""
    masks = torch.zeros(3, 48, 48, dtype=torch.bool)
    masks[0, 16:32, 16:32] = True
    masks[1, :16, :16] = True
    questions = [
        Record(0, "a", "?", (), regions=("m",), question_type="middle"),
        Record(1, "b", "?", (), regions=("n",), question_type="corner"),
        Record(2, "c", "?", (), regions=None, question_type="corner"),
    ]
    blind = blind_quality(Asked(masks, questions), (3, 3))
    even, blob = blind["even spread"], blind["centred blob"]
    assert even["middle"]["mass"] == even["corner"]["mass"] == pytest.approx(1 / 9)
    assert even["middle"]["pointing"] == even["corner"]["pointing"] == pytest.approx(1 / 9)
    assert even["all"]["entropy"] == pytest.approx(0, abs=1e-5)
    assert (blob["middle"]["pointing"], blob["corner"]["pointing"]) == (1, 0)
    # The share of a Gaussian of deviation 1/4 in the middle third, of what lies in the picture.
    expected = (torch.erf(torch.tensor((1 / 6) * 4 / 2**0.5)) / torch.erf(torch.tensor(0.5 * 4 / 2**0.5))) ** 2
    assert blob["middle"]["mass"] == pytest.approx(float(expected), abs=1e-3)
    assert blob["all"]["mass"] == pytest.approx((blob["middle"]["mass"] + blob["corner"]["mass"]) / 2)
    assert float(centred_blob(5, 9).sum()) == pytest.approx(1)
    assert blind_quality(Asked(masks[:0], questions), (3, 3)) == {}
