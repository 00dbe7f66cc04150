"""Pictures that a backbone sees badly distorted: much wider than high, or much higher than wide."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

from regard.pictures._read import FORMATS

SQUEEZED = 3.0  # the longer side over the shorter, above which a picture is worth a warning


def squeezed(paths: Iterable[Path], limit: float = SQUEEZED) -> str | None:
    """A warning with the number of pictures that are squeezed badly, and the worst of them; None if there is none.

    A backbone takes squares, so every picture is resized to one whatever its shape. Only the beginnings of the files
    are read; those that are no pictures are passed over.

    `paths`: of the pictures.
    `limit`: the longer side over the shorter one above which a picture counts; default 3.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, size in (("a.png", (40, 30)), ("wide.png", (200, 20))):
    ...         Image.new("RGB", size).save(Path(folder) / name)
    ...     print(squeezed(sorted(Path(folder).iterdir())).replace(folder, "photos"))
    1 of 2 pictures is squeezed into a square from a shape beyond 3:1, at worst 200 x 20 (wide.png). Crop such pictures.
    """
    from PIL import Image

    count = total = 0
    worst, description = limit, ""
    for path in paths:
        total += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about large pictures: nothing is decoded here
                with Image.open(path, formats=FORMATS) as picture:
                    width, height = picture.size
        except Exception:  # decoders raise many kinds of errors; what reads the picture says so
            continue
        ratio = max(width, height) / max(1, min(width, height))
        count += ratio > limit
        if ratio > worst:
            worst, description = ratio, f"{width} x {height} ({path.name})"
    if not count:
        return None
    verb = "pictures is" if count == 1 else "pictures are"
    return (
        f"{count} of {total} {verb} squeezed into a square from a shape beyond {limit:g}:1, at worst {description}. "
        "Crop such pictures."
    )
