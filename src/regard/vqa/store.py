"""A run on disk: vocabularies, the backbone, checkpoints; and the model back from it.

out/vocabulary.json    words and answers
out/training.json      the names of the pictures that it was trained on
out/backbone/          the backbone that made the features, so that new pictures can be asked about
out/checkpoints/       as `regard.training` writes them; config.json in each says what the model is

A model by the conventions of the Hub has the first two, with model.safetensors and config.json beside them in place of
checkpoints. Evaluations, if there are any, lie in evaluation/ of either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard._files import replacing
from regard._problem import Problem
from regard.backbones import Backbone, load_backbone, save_backbone
from regard.hub.model_folder import WEIGHTS, ModelFolder
from regard.training import Checkpoint, latest
from regard.vqa.grids import of_stages, stamp
from regard.vqa.mcan import MCAN, ModelSettings
from regard.vqa.records import Answers, Records, check_vocabulary
from regard.vqa.words import Words

KIND = "vqa"
_TRAINING = "training.json"
_KEYS = {"model", "cells", "features", "vocabulary", "words", "answers", "backbone"}


@dataclass(frozen=True)
class Run:
    """A trained model with what belongs to it."""

    folder: Path
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

    def trained_on(self, pictures: set[str]) -> int | None:
        """How many of these pictures have the name of one that it was trained on; None if that is not known."""
        try:
            return len(pictures & set(json.loads((self.folder / _TRAINING).read_text(encoding="utf-8"))["pictures"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

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
    _put_vocabulary(path, words, answers)


def write_training(folder: Path, records: Records) -> None:
    """Write which pictures are trained on, so that an evaluation can say whether it has new ones."""
    names = sorted({record.picture for record in records.records})
    with replacing(folder / _TRAINING) as beside:
        beside.write_text(json.dumps({"pictures": names}, ensure_ascii=False), encoding="utf-8")


def _put_vocabulary(path: Path, words: Words, answers: Answers) -> None:
    with replacing(path) as beside:
        beside.write_text(
            json.dumps({"words": words.known, "answers": answers.known}, ensure_ascii=False), encoding="utf-8"
        )


def save_model(
    place: ModelFolder,
    model: MCAN,
    words: Words | None = None,
    answers: Answers | None = None,
    backbone: Backbone | None = None,
    stages: bool = False,
) -> None:
    """Write a model by the conventions of the Hub: the network, and with it what is needed to ask it."""
    config: dict[str, Any] = {
        "kind": KIND,
        "model": model.settings.to_json(),
        "cells": list(model.cells),
        "features": len(model.feature_mean),
        "vocabulary": {"words": model.embedding.num_embeddings, "answers": model.head.out_features},
    }
    if words is not None and answers is not None and backbone is not None:
        _put_vocabulary(place.path / "vocabulary.json", words, answers)
        save_backbone(backbone, place.path / "backbone")
        config |= {
            "words": words.fingerprint,
            "answers": answers.fingerprint,
            "backbone": {"name": "backbone", "fingerprint": stamp(backbone, stages), "end_to_end": False},
        }
    place.write(config, model.state_dict())


def open_model(place: ModelFolder) -> MCAN:
    """The network of a model that was saved by the conventions of the Hub, or the newest of a run."""
    if not (place.path / WEIGHTS).is_file() and latest(place.path) is not None:
        return load_run(place.path).model
    settings = place.settings(KIND)
    place.refuse(settings.keys() - _KEYS)
    with place.describing("model that answers"):
        sizes = settings["vocabulary"]
        model = _made(settings, sizes["words"], sizes["answers"])
    place.fill(model)
    return model.eval()


def _made(config: dict[str, Any], words: int, answers: int) -> MCAN:
    """The network of a config, with weights of its own."""
    height, width = config["cells"]
    settings = ModelSettings(**config["model"])
    return MCAN(settings, vocabulary=words, answers=answers, cells=(height, width), features=config["features"])


def read_vocabulary(folder: Path) -> tuple[Words, Answers]:
    """The vocabularies of a run."""
    path = folder / "vocabulary.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Words(tuple(said["words"])), Answers(tuple(said["answers"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{path} cannot be read ({error}). Put it back from the run, or train again.") from error


def load_run(folder: Path | str) -> Run:
    """The newest model of a run's folder, that of one checkpoint in it, or one saved by the conventions of the Hub."""
    folder = Path(folder)
    checkpoint = latest(folder)
    if checkpoint is None and (folder / "config.json").is_file() and folder.name.startswith("step-"):
        checkpoint = Checkpoint(folder, int(folder.name.removeprefix("step-")))
        folder = folder.parent.parent
    place = ModelFolder(folder)
    if checkpoint is None and not (folder / WEIGHTS).is_file():
        raise Problem(f"{folder} has no checkpoint. Name the folder of a run: regard train --out {folder}")
    config = checkpoint.config if checkpoint is not None else place.config()
    if config.get("kind") != KIND:
        raise Problem(f"{folder} holds a model of kind {config.get('kind')!r}, not one that answers questions.")
    if checkpoint is None and "words" not in config:
        raise Problem(f"{folder} has the network alone, without words and answers. Load it with MCAN.from_pretrained.")
    words, answers = read_vocabulary(folder)
    check_vocabulary(str(folder / "vocabulary.json"), words.fingerprint, config["words"])
    check_vocabulary(str(folder / "vocabulary.json"), answers.fingerprint, config["answers"])
    if checkpoint is None:
        return Run(folder, config, open_model(place), words, answers)
    model = _made(config, len(words), len(answers))
    weights = checkpoint.weights()
    model.load_state_dict({n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")})
    return Run(folder, config, model.eval(), words, answers)
