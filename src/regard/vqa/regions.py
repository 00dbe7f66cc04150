"""The regions that answers rest on, from pictures of masks or of object numbers, as masks of one size."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from regard._problem import Problem
from regard.pictures import MAX_PIXELS
from regard.pictures._read import FORMATS
from regard.vqa.pointing import cell_of
from regard.vqa.records import Record, Skipped

MASK_SIDE = 224  # pixels of a side of a mask at most: larger ones are measured at this size
_MEMORY = 1 << 28  # bytes of masks that are kept, so that they are not read again for every kind of attention


class Regions:
    """The regions of questions: `regions(records)` are masks (B, H, W), `regions.size` is (H, W).

    Masks may have any shape: all are resampled, by the nearest pixel, to the largest height and width among them, at
    most 224 each. Attention and region share the coordinates of the picture, from edge to edge, whatever its shape.
    """

    def __init__(
        self,
        questions: Sequence[Record],
        objects: Mapping[str, Path],
        masks: Mapping[str, Path],
        skipped: Skipped,
        shown: tuple[int, int, int, int] | None = None,
    ) -> None:
        """Remember where the pictures are.

        `questions`: all that may be asked for.
        `objects`: pictures of object numbers, by the name of the picture: for regions that are numbers.
        `masks`: masks, by name: for regions that are names.
        `skipped`: gets a note on each that cannot be read.
        `shown`: the part of the pictures of object numbers that the pictures themselves show: top, left, height and
            width in pixels; default None, all.
        """
        self.objects, self.masks, self.skipped, self.shown = dict(objects), dict(masks), skipped, shown
        known = [record for record in questions if record.regions]
        self._paths = list(dict.fromkeys(path for record in known for path in self._files(record)))
        self._packed: dict[tuple[str, tuple[int | str, ...]], Any] = {}

    def __bool__(self) -> bool:
        """Whether any question has a region."""
        return bool(self._paths)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the masks."""
        sizes = [size for path in self._paths if (size := self._size_of(path)) is not None]
        if not sizes:
            return (1, 1)
        return min(max(h for h, _ in sizes), MASK_SIDE), min(max(w for _, w in sizes), MASK_SIDE)

    def __call__(self, records: Sequence[Record]) -> Tensor:
        """Masks (B, H, W), boolean; all False for a question without a region, or with one that cannot be read."""
        return torch.from_numpy(numpy.stack([self._of(record) for record in records]))

    def _of(self, record: Record) -> Any:
        height, width = self.size
        if not record.regions:
            return numpy.zeros((height, width), dtype=bool)
        # A region of numbers belongs to its picture, one of names does not: questions about it share the mask.
        key = (record.picture if any(isinstance(one, int) for one in record.regions) else "", record.regions)
        if key in self._packed:
            return numpy.unpackbits(self._packed[key], count=height * width).reshape(height, width).astype(bool)
        try:
            mask = self._union(record)
        except Problem as problem:
            self._note(str(problem))
            mask = numpy.zeros((height, width), dtype=bool)
        if len(self._packed) * (height * width // 8) < _MEMORY:
            self._packed[key] = numpy.packbits(mask)
        return mask

    def _union(self, record: Record) -> Any:
        """The pixels of all regions of a question."""
        assert record.regions
        numbers = [region for region in record.regions if isinstance(region, int)]
        parts = [_marked(_opened(self.masks[name])) for name in record.regions if isinstance(name, str)]
        if numbers:
            parts.append(numpy.isin(self._numbers(self.objects[record.picture]), numbers))
        return numpy.logical_or.reduce([_resampled(part, self.size) for part in parts])

    def _numbers(self, path: Path) -> Any:
        """The number of the object at each pixel that is shown (H, W)."""
        numbers = _of_numbers(path)
        if self.shown is None:
            return numbers
        top, left, height, width = self.shown
        part = numbers[top : top + height, left : left + width]
        if part.shape != (height, width):
            raise Problem(f"{path} is smaller than what its picture shows of it. Give the whole mask.")
        return part

    def _files(self, record: Record) -> list[Path]:
        names = [self.masks[region] for region in record.regions or () if isinstance(region, str)]
        with_numbers = any(isinstance(region, int) for region in record.regions or ())
        return names + ([self.objects[record.picture]] if with_numbers else [])

    def _size_of(self, path: Path) -> tuple[int, int] | None:
        from PIL import Image

        try:
            with Image.open(path, formats=FORMATS) as picture:
                return picture.height, picture.width
        except Exception:  # decoders raise many kinds of errors; `_of` says which picture it is
            return None

    def _note(self, sentence: str) -> None:
        if ("region that cannot be read", sentence) not in self.skipped.notes:
            self.skipped.add("region that cannot be read", sentence)


def _opened(path: Path) -> Any:
    """A picture, decoded, as it should be seen."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata; the size is checked here
            with Image.open(path, formats=FORMATS) as picture:
                if picture.width * picture.height > MAX_PIXELS:
                    raise Problem(f"{path} has {picture.width} x {picture.height} pixels. Make the mask smaller.")
                return ImageOps.exif_transpose(picture).copy()
    except Problem:
        raise
    except Exception as error:  # decoders raise many kinds of errors for broken bytes
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Problem(f"{path} cannot be read as a mask ({why}). Save it as PNG.") from error


def _marked(picture: Any) -> Any:
    """The pixels of a mask (H, W): brighter than half of its brightest; of a palette, all but the first colour."""
    if picture.mode == "P":
        return numpy.asarray(picture) > 0
    if picture.mode in ("RGBA", "LA", "RGBa", "La"):
        from PIL import Image

        above = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", above.size, "black"), above)
    values = numpy.asarray(picture if picture.mode[0] in "1IF" else picture.convert("L")).astype(numpy.float64)
    return values > values.max(initial=0) / 2


def _of_numbers(path: Path) -> Any:
    """The number of the object at each pixel (H, W)."""
    numbers = numpy.asarray(_opened(path))
    if numbers.ndim != 2:
        raise Problem(f"{path} has colours, not one object number for each pixel. Save it as grey.")
    return numbers


def _resampled(mask: Any, size: tuple[int, int]) -> Any:
    """A mask (H, W) at another size, by the nearest pixel; a region too thin for that keeps the pixels it touches."""
    if mask.shape == size:
        return mask
    rows, columns = (cell_of(to, of).numpy() for to, of in zip(size, mask.shape, strict=True))
    small = mask[rows][:, columns]
    if mask.any() and not small.any():
        rows, columns = (cell_of(of, to).numpy() for to, of in zip(size, mask.shape, strict=True))
        y, x = mask.nonzero()
        small[rows[y], columns[x]] = True
    return small
