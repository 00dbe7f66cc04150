"""The folder that the experiments of the thesis share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.thesis.printed import TrainedModel
from regard.vqa.folder import AnsweringFolder


@dataclass(frozen=True)
class ThesisFolder:
    """The runs of all tables and figures, and what was made of them.

        runs/MODEL-SEED/          a run; tables and figures that need the same model share it
        table-6.2.md, .json       a table: to read, and its numbers
        figure-6.4.png, .json     a figure, and what it shows; several pictures have -1, -2
        answers/ROW-SPLIT.json    answers to a split without annotations, as the evaluation server takes them

    >>> ThesisFolder(Path("out/thesis")).picture("figure-6.8", 1, 2).as_posix()
    'out/thesis/figure-6.8-2.png'
    """

    path: Path

    def run(self, model: TrainedModel, seed: int) -> AnsweringFolder:
        """The run of a model with a seed."""
        return AnsweringFolder(self.path / "runs" / f"{model.name}-{seed}")

    def text(self, name: str) -> Path:
        """The table with a name, as Markdown."""
        return self.path / f"{name}.md"

    def numbers(self, name: str) -> Path:
        """The numbers of a table, or what a figure shows."""
        return self.path / f"{name}.json"

    def picture(self, name: str, number: int = 0, count: int = 1) -> Path:
        """One of the pictures of a figure, counted from zero."""
        return self.path / (f"{name}.png" if count == 1 else f"{name}-{number + 1}.png")

    def answers(self, row: str, split: str) -> Path:
        """The answers of a row of a table to a split without annotations."""
        return self.path / "answers" / f"{row}-{split}.json"
