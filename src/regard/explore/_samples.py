"""Pictures to choose from, with questions to start with."""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.resources import files

from torch import Tensor

from regard import pictures

SCENES = 6


@dataclass(frozen=True)
class Sample:
    """A picture by name: as bytes of a tensor, as a PNG or JPEG file, and what one might ask about it."""

    name: str
    picture: Tensor
    file: bytes
    kind: str
    questions: tuple[str, ...]


def samples() -> dict[str, Sample]:
    """Scenes of the embedded benchmark that no model was trained on, and a photograph."""
    from PIL import Image

    from regard.scenes import Scenes

    made = {}
    scenes = Scenes("test", SCENES)
    for number in range(SCENES):
        picture = scenes.picture(number)
        written = io.BytesIO()
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(written, "PNG")
        asked = tuple(q.text for q in scenes.questions if q.picture == number)
        name = f"scene-{number + 1}"
        made[name] = Sample(name, picture, written.getvalue(), "image/png", asked)
    photograph = (files("regard") / "assets" / "cat.jpg").read_bytes()
    about = ("What colour is the cat?", "Is there a circle?")
    made["cat"] = Sample("cat", pictures.read(photograph), photograph, "image/jpeg", about)
    return made
