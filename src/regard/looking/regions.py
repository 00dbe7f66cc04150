"""Pictures with the regions that matter in them: masks or outlines in a folder, or in COCO-like JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._problem import Problem
from regard.looking.run_lengths import mask_of_runs
from regard.pictures._read import FORMATS
from regard.pictures._sources import SUFFIXES

_OUTLINES = ".txt"  # ending of files of outlines in YOLO's form


class PictureWithRegion(NamedTuple):
    """A picture and a region of it: its name, the path of the picture, a boolean mask (H, W)."""

    name: str
    picture: Path
    region: Tensor


def read_pairs(pictures: Path | Sequence[Path], masks: Path) -> list[PictureWithRegion]:
    """Pictures with their regions.

    `pictures`: a folder, of which those are taken that have a region; or some pictures, each of which must have one.
    `masks`: a folder with a mask of the same name for each picture, whatever its ending: what is not zero is the
        region (so the pictures of object numbers of drawn scenes are masks too), of one with transparent parts what is
        not transparent. Or with a text file of outlines, as YOLO has them: in each line the number of a class, then x
        and y of its corners as shares of the picture; or of a box, its middle and its sides. Or a JSON file as COCO's:
        `images` with `id`, `file_name`, `width` and `height`, and `annotations` with `image_id` and `segmentation`
        (outlines or run lengths) or `bbox`; the region of a picture is the union of its annotations.
    """
    if not isinstance(pictures, Path):
        return _chosen(list(pictures), masks)
    if not pictures.is_dir():
        raise Problem(f"{pictures} is not a folder of pictures. Check the path.")
    if masks.is_dir():
        pairs = list(_from_folder(pictures, masks))
    elif masks.is_file():
        pairs = list(_from_json(pictures, masks))
    else:
        raise Problem(f"--masks {masks} is neither a folder nor a file. Check the path.")
    pairs = [pair for pair in pairs if bool(pair.region.any())]
    if not pairs:
        raise Problem(f"no picture of {pictures} has a region in {masks}. Masks are named as their pictures.")
    return pairs


def _chosen(pictures: list[Path], masks: Path) -> list[PictureWithRegion]:
    """Those of some pictures, in their order."""
    found = {pair.picture: pair for folder in {path.parent for path in pictures} for pair in read_pairs(folder, masks)}
    for path in pictures:
        if path not in found:
            raise Problem(f"{path} has no region in {masks}. A mask is named as its picture; leave out what has none.")
    return [found[path] for path in pictures]


def _from_folder(pictures: Path, masks: Path) -> Any:
    files = sorted(masks.iterdir(), reverse=True)  # a mask comes before outlines of the same name
    named = {path.stem: path for path in files if path.suffix.lower() in (*SUFFIXES, _OUTLINES)}
    for path in sorted(pictures.iterdir()):
        if path.suffix.lower() in SUFFIXES and path.stem in named:
            file = named[path.stem]
            region = _outlined(file, path) if file.suffix.lower() == _OUTLINES else _mask(file)
            yield PictureWithRegion(path.name, path, region)


def _outlined(file: Path, picture: Path) -> Tensor:
    """What is inside of the outlines, or boxes, that a text file has in YOLO's form."""
    import numpy
    from PIL import Image, ImageDraw

    try:
        with Image.open(picture, formats=FORMATS) as image:
            width, height = image.size
    except OSError as error:
        raise Problem(f"{picture} cannot be read as a picture. Leave it out, or save it again.") from error
    canvas = Image.new("1", (width, height))
    draw = ImageDraw.Draw(canvas)
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            shares = [float(text) for text in line.split()[1:]]
        except ValueError:
            shares = []
        if not line.strip():
            continue
        if len(shares) < 4 or len(shares) % 2:
            raise Problem(f"{file}, line {number}: expected a class, then x and y of corners, or a box. Correct it.")
        if len(shares) == 4:
            x, y, across, down = shares
            left, right, top, bottom = x - across / 2, x + across / 2, y - down / 2, y + down / 2
            draw.rectangle((left * width, top * height, right * width - 1, bottom * height - 1), fill=1)
        else:
            corners = [(x * width, y * height) for x, y in zip(shares[::2], shares[1::2], strict=True)]
            draw.polygon(corners, fill=1)
    return torch.from_numpy(numpy.array(canvas))


def _mask(path: Path) -> Tensor:
    """What is not zero in a picture of a mask, or not transparent, if only some of it is."""
    import numpy
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            bands = image.getbands()
            values = torch.from_numpy(numpy.asarray(image).astype(numpy.int64))
    except OSError as error:
        raise Problem(f"{path} is not a mask that can be read. Save it as PNG.") from error
    values = values if values.dim() == 3 else values[..., None]
    if bands[-1] == "A":
        opacity, values = values[..., -1], values[..., :-1]
        if int(opacity.amin()) < int(opacity.amax()):
            return opacity.ne(0)
    return values.ne(0).any(-1)


def _from_json(pictures: Path, file: Path) -> Any:
    try:
        content = json.loads(file.read_text())
        shapes = defaultdict(list)
        for annotation in content["annotations"]:
            shapes[annotation["image_id"]].append(annotation)
        images = [
            (one["file_name"], int(one["width"]), int(one["height"]), shapes[one["id"]]) for one in content["images"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f'{file} is not COCO-like JSON: it needs "images" and "annotations" ({error}).') from error
    for name, width, height, marked in images:
        if not marked or not (pictures / name).is_file():
            continue
        region = torch.zeros(height, width, dtype=torch.bool)
        for annotation in marked:
            try:
                region |= _annotated(annotation, height, width)
            except (ValueError, KeyError, TypeError) as error:
                what = "expected outlines or run lengths in segmentation, or a bbox"
                raise Problem(f"{file}: an annotation of {name} cannot be read: {error}; {what}.") from error
        yield PictureWithRegion(name, pictures / name, region)


def _annotated(annotation: dict[str, Any], height: int, width: int) -> Tensor:
    """The mask (H, W) of one annotation: of its outlines or run lengths, and only without these of its box."""
    import numpy
    from PIL import Image, ImageDraw

    shape = annotation.get("segmentation")
    if isinstance(shape, dict):
        if [int(side) for side in shape["size"]] != [height, width]:
            raise ValueError(f"run lengths of size {shape['size']} in a picture of {[height, width]}")
        return mask_of_runs(shape["counts"], (height, width))
    canvas = Image.new("1", (width, height))
    draw = ImageDraw.Draw(canvas)
    if shape:
        for outline in shape:
            draw.polygon(list(map(float, outline)), fill=1)
    else:
        x, y, across, down = map(float, annotation["bbox"])
        if not (across > 0 and down > 0):
            raise ValueError(f"a bbox {annotation['bbox']} without an area")
        draw.rectangle((x, y, x + max(0.0, across - 1), y + max(0.0, down - 1)), fill=1)
    return torch.from_numpy(numpy.array(canvas))
