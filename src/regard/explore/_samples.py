"""Sample pictures for the page, with questions about them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.resources import files

from torch import Tensor

from regard import pictures

SCENES = 6


@dataclass(frozen=True)
class Sample:
    """A sample: the picture (3, H, W) as uint8, its file with the media type `kind`, and questions about it."""

    name: str
    picture: Tensor
    file: bytes
    kind: str
    questions: tuple[str, ...]


def samples() -> dict[str, Sample]:
    """Scenes of the embedded benchmark that no model was trained on, and a photograph."""
    from PIL import Image

    from regard.scenes import Scenes

    result = {}
    scenes = Scenes("test", SCENES)
    for number in range(SCENES):
        picture = scenes.picture(number)
        file = io.BytesIO()
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file, "PNG")
        questions = tuple(q.text for q in scenes.questions if q.picture == number)
        name = f"scene-{number + 1}"
        result[name] = Sample(name, picture, file.getvalue(), "image/png", questions)
    photograph = (files("regard") / "assets" / "cat.jpg").read_bytes()
    questions = ("What colour is the cat?", "Is there a circle?")
    result["cat"] = Sample("cat", pictures.read(photograph), photograph, "image/jpeg", questions)
    return result
