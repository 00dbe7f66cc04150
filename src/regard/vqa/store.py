"""A run on disk: vocabularies, the backbone, checkpoints; and the model back from it.

out/vocabulary.json    words and answers
out/backbone/          the backbone that made the features, so that new pictures can be asked about
out/checkpoints/       as `regard.training` writes them; config.json in each says what the model is
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.backbones import Backbone, load_backbone
from regard.training import Checkpoint, latest
from regard.vqa.grids import of_stages, stamp
from regard.vqa.mcan import MCAN, ModelSettings
from regard.vqa.records import Answers, check_vocabulary
from regard.vqa.words import Words

KIND = "vqa"


@dataclass(frozen=True)
class Run:
    """A trained model with what belongs to it."""

    folder: Path
    checkpoint: Checkpoint
    config: dict[str, Any]
    model: MCAN
    words: Words
    answers: Answers

    @property
    def backbone_fingerprint(self) -> str:
        """Of the backbone whose features the model takes."""
        if self.config["backbone"].get("end_to_end"):
            return stamp(self.load_backbone())
        return str(self.config["backbone"]["fingerprint"])

    @property
    def stages(self) -> bool:
        """Whether its features are of all stages of the backbone."""
        return of_stages(str(self.config["backbone"]["fingerprint"]))

    def load_backbone(self) -> Backbone:
        """The backbone, after checking that it is the one."""
        said = self.config["backbone"]
        kept = self.folder / "backbone"
        backbone = load_backbone(kept if kept.is_dir() else said["name"])
        found = stamp(backbone, self.stages)
        if not said.get("end_to_end") and found != said["fingerprint"]:
            raise Problem(
                f"the backbone in {kept if kept.is_dir() else said['name']} has fingerprint {found}, "
                f"the model was trained on features of {said['fingerprint']}. Put the right one there."
            )
        return backbone


def write_vocabulary(folder: Path, words: Words, answers: Answers) -> None:
    """Write both vocabularies; a Problem if others are there already."""
    path = folder / "vocabulary.json"
    if path.is_file():
        old_words, old_answers = read_vocabulary(folder)
        if (old_words, old_answers) != (words, answers):
            raise Problem(f"{path} is the vocabulary of another run. Train into another folder.")
        return
    with replacing(path) as beside:
        beside.write_text(json.dumps({"words": words.known, "answers": answers.known}, ensure_ascii=False))


def read_vocabulary(folder: Path) -> tuple[Words, Answers]:
    """The vocabularies of a run."""
    path = folder / "vocabulary.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Words(tuple(said["words"])), Answers(tuple(said["answers"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{path} cannot be read ({error}). Put it back from the run, or train again.") from error


def load_run(folder: Path | str) -> Run:
    """The newest model of a run's folder, or that of one checkpoint in it."""
    folder = Path(folder)
    checkpoint = latest(folder)
    if checkpoint is None and (folder / "config.json").is_file() and folder.name.startswith("step-"):
        checkpoint = Checkpoint(folder, int(folder.name.removeprefix("step-")))
        folder = folder.parent.parent
    if checkpoint is None:
        raise Problem(f"{folder} has no checkpoint. Name the folder of a run: regard train --out {folder}")
    config = checkpoint.config
    if config.get("kind") != KIND:
        raise Problem(f"{folder} holds a model of kind {config.get('kind')!r}, not one that answers questions.")
    words, answers = read_vocabulary(folder)
    check_vocabulary(str(folder / "vocabulary.json"), words.fingerprint, config["words"])
    check_vocabulary(str(folder / "vocabulary.json"), answers.fingerprint, config["answers"])
    model = MCAN(
        ModelSettings(**config["model"]),
        vocabulary=len(words),
        answers=len(answers),
        cells=(config["cells"][0], config["cells"][1]),
        features=config["features"],
    )
    weights = checkpoint.weights()
    model.load_state_dict({n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")})
    return Run(folder, checkpoint, config, model.eval(), words, answers)
