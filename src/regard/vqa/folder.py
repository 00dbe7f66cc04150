"""The folders of question answering: of a run, and of a comparison of runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard._problem import Problem
from regard.training import RunFolder
from regard.vqa.records import Answers
from regard.vqa.words import Words

if TYPE_CHECKING:
    from regard.vqa.summary import RunSummary


@dataclass(frozen=True)
class DataSource:
    """What a run is made from.

    table, pictures    the table of questions, and the folder of its pictures
    questions          how many
    digest             a hash of questions, answers and splits
    backbone           what makes the features, as `make_backbone` takes it
    about              the same in words
    untrained          whether its weights are random
    stages             whether the maps of all its stages are used
    """

    table: str
    pictures: str
    questions: int
    digest: str
    backbone: str
    about: str
    untrained: bool
    stages: bool


@dataclass(frozen=True)
class AnsweringFolder(RunFolder):
    """The folder of a model that answers: what any run has, and

        vocabulary.json    words and answers
        training.json      the names of the pictures that it was trained on
        features.json      the folder of the features that it was trained on
        validation.json    the validation accuracy after each epoch, if it is measured
        features/SPLIT/    features of the pictures of other splits, made for an evaluation
        questions.jsonl    all questions with their splits, if `regard vqa` made the run
        source.json        the table and the folder of pictures that they are from
        report.html        the report
        samples/           some held-out pictures with their questions: see `regard.vqa.samples`
        summary.json       how well it answers questions about held-out pictures: see `regard.vqa.summary`

    A model saved as on the Hub has vocabulary.json, model.safetensors and config.json, and no checkpoints.
    `regard.vqa.results` writes evaluation/ in either.

    >>> AnsweringFolder(Path("out/vqa")).own_features("test").as_posix()
    'out/vqa/features/test'
    """

    @property
    def vocabulary(self) -> Path:
        """The file of words and answers."""
        return self.path / "vocabulary.json"

    def own_features(self, split: str) -> Path:
        """The folder for features of a split's pictures, if those of the training do not have them all."""
        return self.path / "features" / split

    @property
    def samples(self) -> Path:
        """The folder of held-out pictures with their questions."""
        return self.path / "samples"

    @property
    def questions(self) -> Path:
        """The file of all questions with their splits."""
        return self.path / "questions.jsonl"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def remove_features(self) -> None:
        """Remove the backbone and all features, to start over."""
        for place in (self.backbone, self.path / "features"):
            shutil.rmtree(place, ignore_errors=True)

    def write_source(self, source: DataSource) -> None:
        """Write where questions and pictures are from."""
        self.write_json(self._source, asdict(source))

    def read_source(self) -> DataSource | None:
        """Where questions and pictures are from; None if unknown."""
        try:
            return DataSource(**json.loads(self._source.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def put_vocabulary(self, words: Words, answers: Answers) -> None:
        """Write both vocabularies, overwriting others."""
        content = {"words": words.known, "answers": answers.known}
        if answers.spelled != answers.known:
            content["spelled"] = answers.spelled
        self.write_json(self.vocabulary, content)

    def write_vocabulary(self, words: Words, answers: Answers) -> None:
        """Write both vocabularies; a Problem if the folder has others."""
        if not self.vocabulary.is_file():
            self.put_vocabulary(words, answers)
        elif self.read_vocabulary() != (words, answers):
            raise Problem(f"{self.vocabulary} is the vocabulary of another run. Train into another folder.")

    def read_vocabulary(self) -> tuple[Words, Answers]:
        """Both vocabularies."""
        try:
            content = json.loads(self.vocabulary.read_text(encoding="utf-8"))
            return Words(tuple(content["words"])), Answers(tuple(content["answers"]), tuple(content.get("spelled", ())))
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "Put it back from the run, or train again."
            raise Problem(f"{self.vocabulary} cannot be read ({error}). {remedy}") from error

    def write_pictures(self, names: Iterable[str]) -> None:
        """Write the names of the pictures that are trained on, so that an evaluation can recognise them."""
        self.write_json(self._pictures, {"pictures": sorted(set(names))})

    def read_pictures(self) -> set[str] | None:
        """The names of the pictures that it was trained on; None if unknown."""
        names = self._read(self._pictures, "pictures")
        return None if names is None else set(names)

    def write_features(self, folder: Path) -> None:
        """Write the folder of the features that it is trained on."""
        self.write_json(self._features, {"folder": str(folder.resolve())})

    def read_features(self) -> Path | None:
        """The folder of the features that it was trained on; None if unknown."""
        folder = self._read(self._features, "folder")
        return None if folder is None else Path(folder)

    def write_validation(self, scores: dict[int, float]) -> None:
        """Write the validation accuracy after each epoch; epochs are counted from one."""
        self.write_json(self._validation, scores)

    def read_validation(self) -> dict[int, float]:
        """The validation accuracy after each epoch so far; empty if there is none."""
        if not self._validation.is_file():
            return {}
        return {int(epoch): score for epoch, score in json.loads(self._validation.read_text()).items()}

    def write_summary(self, summary: RunSummary) -> None:
        """Write how well the run answers."""
        self.write_json(self._summary, summary.to_json())

    def read_summary(self) -> RunSummary | None:
        """How well the run answers; None if nothing has been measured. A Problem if the file is broken."""
        from regard.vqa.summary import RunSummary

        try:
            return RunSummary.from_json(json.loads(self._summary.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise Problem(f"{self._summary} cannot be read ({why}). Remove it, and evaluate the run again.") from error

    def begin_afresh(self) -> None:
        """Remove the state from which an older run could be resumed, and what was measured on it."""
        super().begin_afresh()
        self._validation.unlink(missing_ok=True)
        self._summary.unlink(missing_ok=True)

    @staticmethod
    def _read(file: Path, key: str) -> Any:
        """One entry of a JSON file; None if it cannot be read."""
        try:
            return json.loads(file.read_text(encoding="utf-8"))[key]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def _source(self) -> Path:
        return self.path / "source.json"

    @property
    def _pictures(self) -> Path:
        return self.path / "training.json"

    @property
    def _features(self) -> Path:
        return self.path / "features.json"

    @property
    def _validation(self) -> Path:
        return self.path / "validation.json"

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of a comparison: a run for each kind of attention and seed, and results.json with all numbers.

    >>> ComparisonFolder(Path("out/compare")).run("mixture-2", 0).path.as_posix()
    'out/compare/mixture-2-0'
    """

    path: Path

    def run(self, kind: str, seed: int) -> AnsweringFolder:
        """The run of a kind and a seed."""
        return AnsweringFolder(self.path / f"{kind}-{seed}")

    @property
    def queue(self) -> Path:
        """The folder of what several processes share: leases and results of runs."""
        return self.path / "queue"

    @property
    def results(self) -> Path:
        """The file with all numbers."""
        return self.path / "results.json"

    def write_results(self, numbers: dict[str, Any]) -> None:
        """Write all numbers."""
        RunFolder.write_json(self.results, numbers)
