"""Regions from masks of every kind of PNG, and from outlines, run lengths and boxes in COCO-like JSON."""

import json

import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.looking import read_pairs

# A mask, its string and that of its complement, as pycocotools 2.0.11 writes them.
ROWS = [
    "1000000000000",
    "0000000000000",
    "0001111100000",
    "0001111100000",
    "0001101100000",
    "0001111100000",
    "0000000000000",
    "0000000000111",
    "0000000000111",
]
MASK = torch.tensor([[letter == "1" for letter in row] for row in ROWS])
STRING, COMPLEMENT = "01l03YO00NLO4300g0N[O000", "1l04YO00NLO4300g0N[O000"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "masks").mkdir()
    Image.new("RGB", (13, 9)).save(tmp_path / "pictures" / "a.png")
    return tmp_path


def as_image(mask):
    return Image.fromarray(mask.byte().mul(255).numpy())


def opaque(kind, mask):
    return Image.merge(kind, [*[as_image(mask)] * (len(kind) - 1), Image.new("L", (13, 9), 255)])


KINDS = {
    "L": as_image,
    "1": lambda mask: as_image(mask).convert("1"),
    "RGB": lambda mask: as_image(mask).convert("RGB"),
    "numbers of objects": lambda mask: Image.fromarray(mask.byte().mul(3).numpy()).convert("P"),
    "opaque grey": lambda mask: opaque("LA", mask),
    "opaque colour": lambda mask: opaque("RGBA", mask),
    "cut out": lambda mask: Image.merge("RGBA", [*[Image.new("L", (13, 9))] * 3, as_image(mask)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_the_same_region_whatever_kind_of_picture_it_is(folder, kind):
    KINDS[kind](MASK).save(folder / "masks" / "a.png")
    assert torch.equal(read_pairs(folder / "pictures", folder / "masks")[0].region, MASK)


def region_of(folder, *annotations):
    images = [{"id": 5, "file_name": "a.png", "width": 13, "height": 9}]
    marked = [{"image_id": 5, **one} for one in annotations]
    (folder / "coco.json").write_text(json.dumps({"images": images, "annotations": marked}))
    return read_pairs(folder / "pictures", folder / "coco.json")[0].region


def counted(mask):
    """Run lengths one pixel after the other, column by column."""
    counts, inside = [0], False
    for pixel in mask.mT.flatten().tolist():
        if pixel != inside:
            counts.append(0)
            inside = pixel
        counts[-1] += 1
    return counts


def box(x, y, across, down):
    mask = torch.zeros(9, 13, dtype=torch.bool)
    mask[y : y + down, x : x + across] = True
    return mask


def test_annotations_of_every_kind(folder):
    runs = {"counts": counted(MASK), "size": [9, 13]}
    assert torch.equal(region_of(folder, {"segmentation": runs, "bbox": [0, 0, 13, 9]}), MASK)
    assert torch.equal(region_of(folder, {"segmentation": {"counts": STRING, "size": [9, 13]}}), MASK)
    assert torch.equal(region_of(folder, {"segmentation": {"counts": COMPLEMENT, "size": [9, 13]}}), ~MASK)
    for mask in torch.rand(20, 9, 13).gt(0.4):
        assert torch.equal(region_of(folder, {"segmentation": {"counts": counted(mask), "size": [9, 13]}}), mask)
    assert torch.equal(region_of(folder, {"bbox": [2, 3, 4, 5]}), box(2, 3, 4, 5))
    assert torch.equal(region_of(folder, {"bbox": [2.4, 3.4, 0.3, 0.2], "segmentation": []}), box(2, 3, 1, 1))
    outlined = region_of(folder, {"segmentation": [[1, 1, 4, 1, 4, 4, 1, 4]], "bbox": [0, 0, 13, 9]})
    assert outlined[2, 2]
    assert 9 <= int(outlined.sum()) <= 16
    both = region_of(folder, {"bbox": [2, 3, 4, 5]}, {"segmentation": {"counts": STRING, "size": [9, 13]}})
    assert torch.equal(both, MASK | box(2, 3, 4, 5))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({}, "'bbox'; expected outlines or run lengths"),
        ({"bbox": [0, 0, 3]}, "expected 4"),
        ({"bbox": ["x", 0, 3, 3]}, "could not convert"),
        ({"bbox": [5, 5, -2, 3]}, r"a bbox \[5, 5, -2, 3\] without an area"),
        ({"segmentation": [[0, 0, 16]]}, "wrong number of coordinates"),
        ({"segmentation": {"counts": [3, 4], "size": [9, 13]}}, "run lengths of 7 pixels for a size of 9 x 13"),
        ({"segmentation": {"counts": [117], "size": [13, 9]}}, r"size \[13, 9\] in a picture of \[9, 13\]"),
        ({"segmentation": {"counts": STRING[:-1], "size": [9, 13]}}, "pixels for a size"),
        ({"segmentation": {"counts": STRING + "P", "size": [9, 13]}}, "that end within a number"),
        ({"segmentation": {"counts": "0!", "size": [9, 13]}}, "'!' in run lengths"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_one_line(folder, annotation, message):
    with pytest.raises(Problem, match=r"coco\.json: an annotation of a\.png cannot be read: .*" + message):
        region_of(folder, annotation)
