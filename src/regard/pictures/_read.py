"""One picture: from a file or bytes of any format to a uint8 tensor."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._problem import Problem

MAX_PIXELS = 100_000_000
"""Pictures with more pixels are refused before they are decoded: a small file can claim to be huge."""

STRIP_PIXELS = 1 << 20  # pixels that are converted at once


# Decoders of other formats may start programs, as that of PostScript does, whatever the file's name.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def read(source: Path | str | bytes, *, max_pixels: int = MAX_PIXELS, name: str | None = None) -> Tensor:
    """The picture in a file or in bytes as it should be seen: (3, H, W), uint8, RGB.

    It is rotated by its EXIF orientation; grey, palette, CMYK and 16-bit pictures become RGB; transparent ones are
    composed on white; of an animation it is the first frame. Formats other than BMP, GIF, JPEG, PNG, PPM, TIFF and
    WebP, more than `max_pixels` pixels (default 100 million), and broken files are a `Problem` with the `name`, default
    the path.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (4, 2), 7).save(file, "PNG")
    >>> read(file.getvalue()).shape, int(read(file.getvalue())[0, 0, 0])
    (torch.Size([3, 2, 4]), 7)
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = name or (f"{len(source)} bytes" if isinstance(source, bytes) else str(source))
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise Problem(f"{name} is not a file. Check the path.")
    try:
        with warnings.catch_warnings():
            # Warnings about odd metadata and large pictures; the size is checked below.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise Problem(f"{name} has {width} x {height} pixels, more than {max_pixels}. Make it smaller.")
                ImageOps.exif_transpose(image, in_place=True)
                pixels = _pixels(image)
    except Problem:
        raise
    except UnidentifiedImageError as error:
        raise Problem(f"{name} is not a picture that can be read. Save it as PNG or JPEG.") from error
    except Image.DecompressionBombError as error:
        raise Problem(f"{name} has too many pixels: {str(error).rstrip('.')}. Make it smaller.") from error
    except Exception as error:  # decoders raise many kinds of errors for broken bytes
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Problem(f"{name} is broken ({why}). Replace it, or remove it.") from error
    return pixels


def _pixels(image: Any) -> Tensor:
    """A PIL image of any mode as (3, H, W), uint8: some rows at a time, because a conversion takes several copies."""
    import numpy as np

    convert = _deep(image) if image.mode.startswith("I") or image.mode == "F" else _rgb
    pixels = torch.empty(3, image.height, image.width, dtype=torch.uint8)
    for box in _strips(image):
        rgb = np.array(convert(image.crop(box)), dtype=np.uint8)
        pixels[:, box[1] : box[3]] = torch.from_numpy(rgb).permute(2, 0, 1)
    return pixels


def _strips(image: Any) -> Iterator[tuple[int, int, int, int]]:
    """Boxes (left, upper, right, lower) of some rows each, which make up the picture."""
    rows = max(1, STRIP_PIXELS // max(1, image.width))
    for upper in range(0, image.height, rows):
        yield 0, upper, image.width, min(upper + rows, image.height)


def _rgb(image: Any) -> Any:
    """A PIL image with eight bits in each channel as RGB."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        above = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above).convert("RGB")
    return image.convert("RGB")


def _deep(image: Any) -> Callable[[Any], Any]:
    """How to convert the parts of a picture with more bits: 16, whole numbers of 32, or floats in one channel."""
    import numpy as np
    from PIL import Image

    def values(part: Any) -> Any:
        numbers = np.asarray(part, dtype=np.float64)
        return np.where(np.isfinite(numbers), numbers, 0.0)

    top = max((float(values(image.crop(box)).max(initial=0.0)) for box in _strips(image)), default=0.0)
    if image.mode == "F" and top <= 1:
        scale = 255.0
    elif image.mode.startswith("I;16") or 255 < top <= 65535:
        scale = 1 / 257
    else:
        scale = 1.0 if top <= 255 else 255 / top

    def convert(part: Any) -> Any:
        return Image.fromarray(np.clip(np.rint(values(part) * scale), 0, 255).astype(np.uint8)).convert("RGB")

    return convert
