"""Sample pictures for the page, with questions about them: those of the run, else some that the model can be asked."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import pictures
from regard._problem import Problem
from regard.vqa.accuracy import normalise, soft_target
from regard.vqa.folder import AnsweringFolder
from regard.vqa.records import Answers, Record
from regard.vqa.samples import read_samples
from regard.vqa.words import Words, tokens

SCENES, THUMBNAIL = 6, 128  # scenes that are drawn; pixels of the longer side of a small copy
ABOUT_THE_CAT = ("What colour is the cat?", "What color is the cat?", "What animal is this?", "Is there a cat?")


@dataclass(frozen=True)
class PeoplesAnswer:
    """An answer that `count` of `total` people gave, normalised; `credit` is what giving it earns, between 0 and 1.

    `possible`: whether it is among the answers that the model can give.
    """

    answer: str
    count: int
    total: int
    credit: float
    possible: bool


@dataclass(frozen=True)
class SampleQuestion:
    """A question about a sample, and the answers of people, the commonest first; none if unknown."""

    text: str
    answers: tuple[PeoplesAnswer, ...] = ()


@dataclass(frozen=True)
class SamplePicture:
    """A sample on the page: the picture (3, H, W) as uint8, its file with the media type `kind`, and its questions.

    `name` is that in the address, `label` what people read.
    """

    name: str
    label: str
    picture: Tensor
    file: bytes
    kind: str
    questions: tuple[SampleQuestion, ...]

    def to_json(self) -> dict[str, Any]:
        """As the page takes it."""
        questions = [{"text": q.text, "answers": [vars(a) for a in q.answers]} for q in self.questions]
        return {"name": self.name, "label": self.label, "questions": questions}

    def thumbnail(self) -> bytes:
        """A small copy as JPEG."""
        from PIL import Image

        image = Image.fromarray(self.picture.permute(1, 2, 0).numpy())
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        return _encoded(image, "JPEG", quality=75)


def sample_pictures(
    run: Path | None, words: Words | None = None, answers: Answers | None = None
) -> dict[str, SamplePicture]:
    """The pictures that the page opens on, by name.

    Those that the run carries; without any, drawn scenes if the model knows all words of their questions; else the
    photograph, with the questions that it knows all words of; else none.

    `run`: the folder of the model; None if there is none.
    `words`, `answers`: its vocabularies; default None, as of a model that knows every word.
    """
    found = _of_run(AnsweringFolder(run), answers) if run is not None else []
    if not found:
        found = [scene for scene in drawn_scenes() if _known((q.text for q in scene.questions), words)]
    if not found:
        found = _photograph(words)
    return {sample.name: sample for sample in found}


def look_pictures(samples: Iterable[SamplePicture] = ()) -> dict[str, SamplePicture]:
    """The pictures to look at, by name: the photograph, and then those of the model that answers."""
    return {sample.name: sample for sample in (photograph(), *samples)}


def drawn_scenes() -> list[SamplePicture]:
    """Scenes of the embedded benchmark that no model was trained on."""
    from PIL import Image

    from regard.scenes import Scenes

    scenes = Scenes("test", SCENES)
    drawn = []
    for number in range(SCENES):
        picture = scenes.picture(number)
        file = _encoded(Image.fromarray(picture.permute(1, 2, 0).numpy()), "PNG")
        questions = tuple(
            SampleQuestion(q.text, peoples_answers([q.answer])) for q in scenes.questions if q.picture == number
        )
        name = f"scene-{number + 1}"
        drawn.append(SamplePicture(name, name, picture, file, "image/png", questions))
    return drawn


def peoples_answers(given: Sequence[str], answers: Answers | None = None) -> tuple[PeoplesAnswer, ...]:
    """What people answered, the commonest first, with the credit of each as in training.

    >>> [(a.answer, a.count, a.credit) for a in peoples_answers(["Red"] * 8 + ["pink", "pink"])]
    [('red', 8, 1.0), ('pink', 2, 0.6)]
    """
    counts = Counter(normalise(answer) for answer in given)
    total = counts.total()
    return tuple(
        PeoplesAnswer(text, n, total, soft_target(round(10 * n / total)), answers is None or text in answers.numbers)
        for text, n in counts.most_common()
    )


def _of_run(folder: AnsweringFolder, answers: Answers | None) -> list[SamplePicture]:
    """The samples that a run carries; pictures that cannot be read are passed over."""
    found: list[SamplePicture] = []
    for sample in read_samples(folder):
        try:
            file = sample.picture.read_bytes()
            picture = pictures.read(file, name=str(sample.picture))
        except (OSError, Problem):
            continue
        asked: dict[str, Record] = {record.question: record for record in reversed(sample.records)}
        questions = tuple(SampleQuestion(q, peoples_answers(asked[q].answers, answers)) for q in reversed(asked))
        name = f"sample-{len(found) + 1}"
        found.append(SamplePicture(name, Path(sample.name).name, picture, file, "image/jpeg", questions))
    return found


def _photograph(words: Words | None) -> list[SamplePicture]:
    """The photograph of a cat, if the model knows all words of a question about it."""
    questions = tuple(SampleQuestion(text) for text in ABOUT_THE_CAT if _known([text], words))
    if not questions:
        return []
    return [photograph(questions)]


def photograph(questions: tuple[SampleQuestion, ...] = ()) -> SamplePicture:
    """The photograph of a cat that the package has."""
    file = (files("regard") / "assets" / "cat.jpg").read_bytes()
    return SamplePicture("cat", "a cat", pictures.read(file), file, "image/jpeg", questions)


def _known(questions: Iterable[str], words: Words | None) -> bool:
    return words is None or all(word in words.numbers for question in questions for word in tokens(question))


def _encoded(image: Any, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
