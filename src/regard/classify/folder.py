"""The folder of a classifier."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard._problem import Problem
from regard.swav._folder import FinetuningFolder
from regard.training import RunFolder
from regard.vqa.kinds import Kind

if TYPE_CHECKING:
    from regard.classify.summary import ClassifierSummary

CLASSIFIER_KIND = "classifier"


@dataclass(frozen=True)
class ClassifierSource:
    """What a classifier is made from.

    pictures     the folder of the pictures, or what they are
    backbone     what makes the features, as `make_backbone` takes it
    about        the same in words
    untrained    whether its weights are random
    stages       whether the maps of all its stages are used
    classes      the names of the classes
    pool         the pool that was trained last, by name
    """

    pictures: str
    backbone: str
    about: str
    untrained: bool
    stages: bool
    classes: tuple[str, ...]
    pool: str

    @property
    def config(self) -> dict[str, object]:
        """As the config of the run."""
        return {"kind": CLASSIFIER_KIND, **asdict(self)}


@dataclass(frozen=True)
class ClassifierFolder(FinetuningFolder):
    """The folder of a classifier: what a fine-tuning has, with a run for each pool that was trained, and

        features/       the features of all pictures
        heads/POOL/     the run of a pool, with its checkpoints
        summary.json    how well each pool classifies held-out pictures, and where it looks
        report.html     the report

    >>> ClassifierFolder(Path("out/pets-classes")).head("average").path.as_posix()
    'out/pets-classes/heads/average'
    """

    @property
    def features(self) -> Path:
        """The folder of the features."""
        return self.path / "features"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def head(self, pool: str | Kind) -> RunFolder:
        """The run of a pool."""
        return RunFolder(self.path / "heads" / str(pool))

    def trained(self) -> list[str]:
        """The names of the pools whose training has ended, in the order of their names."""
        folders = sorted((self.path / "heads").glob("*"))
        return [folder.name for folder in folders if RunFolder(folder).is_done]

    @property
    def is_classifier(self) -> bool:
        """Whether the folder is that of a classifier, however far it is."""
        return self.config.is_file() and self.read_config().get("kind") == CLASSIFIER_KIND

    def check_own(self) -> None:
        """Raise a Problem if the folder has a run of another command."""
        if self.config.is_file() and not self.is_classifier:
            raise Problem(f"{self.path} has a run of another command. Name another folder: --out")

    def read_source(self) -> ClassifierSource | None:
        """What the classifier is made from; None if the folder has no run yet. A Problem if it has another's."""
        self.check_own()
        if not self.config.is_file():
            return None
        config = self.read_config()
        try:
            content = {name: value for name, value in config.items() if name != "kind"}
            return ClassifierSource(**{**content, "classes": tuple(map(str, content["classes"]))})
        except (KeyError, TypeError) as error:
            raise Problem(f"{self.config} is not whole ({error}). Start over: --fresh") from error

    def begin_afresh(self) -> None:
        """Remove everything that an older run made."""
        super().begin_afresh()
        for folder in (self.path / "heads", self.features):
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def _results(self) -> tuple[Path, ...]:
        return (*super()._results, self._summary, self.report, self.config)

    def write_summary(self, summary: ClassifierSummary) -> None:
        """Write how well it classifies."""
        self.write_json(self._summary, summary.to_json())

    def read_summary(self) -> ClassifierSummary | None:
        """How well it classifies; None if that is not known."""
        from regard.classify.summary import ClassifierSummary

        try:
            return ClassifierSummary.from_json(json.loads(self._summary.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"{self._summary} cannot be read ({error}). Remove it, and rerun the command.") from error

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"
