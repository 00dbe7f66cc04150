"""A model that answers: saved as on the Hugging Face Hub, and loaded from there or from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regard._problem import Problem
from regard.backbones import Backbone, load_backbone, save_backbone
from regard.hub.model_folder import ModelFolder
from regard.training import Checkpoint, latest
from regard.training._setting import changed
from regard.vqa.description import FeatureDescription
from regard.vqa.folder import AnsweringFolder
from regard.vqa.mcan import MCAN
from regard.vqa.records import Answers, check_vocabulary
from regard.vqa.settings import ModelSettings
from regard.vqa.words import Words

KIND = "vqa"
_KEYS = {"model", "cells", "features", "vocabulary", "words", "answers", "backbone"}


@dataclass(frozen=True)
class Run:
    """A trained model with its folder, config and vocabularies."""

    folder: AnsweringFolder
    config: dict[str, Any]
    model: MCAN
    words: Words
    answers: Answers

    @cached_property
    def features(self) -> FeatureDescription:
        """The description of the features that the model takes; after end-to-end training, of the trained backbone."""
        written = FeatureDescription.from_json(self.config["backbone"])
        if self.config["backbone"].get("end_to_end"):
            return FeatureDescription.of(self._open_backbone(), written.name)
        return written

    def trained_on(self, pictures: set[str]) -> int | None:
        """How many of these pictures have the name of one that it was trained on; None if unknown."""
        names = self.folder.read_pictures()
        return None if names is None else len(pictures & names)

    @property
    def _backbone_source(self) -> Path | str:
        """The copy of the backbone in the folder; without one, the name or folder that the features were made by."""
        copy = self.folder.backbone
        return copy if copy.is_dir() else FeatureDescription.from_json(self.config["backbone"]).name

    def _open_backbone(self) -> Backbone:
        return load_backbone(self._backbone_source)

    def load_backbone(self) -> Backbone:
        """The backbone, on the model's device; a Problem if it does not make the features that it was trained on."""
        backbone = self._open_backbone().to(next(self.model.parameters()).device)
        if self.config["backbone"].get("end_to_end"):
            return backbone
        description = FeatureDescription.of(backbone, str(self._backbone_source), self.features.stages)
        if difference := description.difference(self.features):
            raise Problem(
                f"the backbone in {description.name} does not make the features that the model was trained on: "
                f"{difference}. Put the right one there."
            )
        return backbone


def save_model(
    place: ModelFolder,
    model: MCAN,
    words: Words | None = None,
    answers: Answers | None = None,
    backbone: Backbone | None = None,
    features: FeatureDescription | None = None,
) -> None:
    """Save a model as on the Hub: the network alone, or, if all others are given, all that `Predictor` needs.

    `place`: the folder to write.
    `model`: the network.
    `words`, `answers`: its vocabularies; default None.
    `backbone`: which makes its features; default None.
    `features`: their description; default None.
    """
    config: dict[str, Any] = {
        "kind": KIND,
        "model": model.settings.to_json(),
        "cells": list(model.cells),
        "features": len(model.feature_mean),
        "vocabulary": {"words": model.embedding.num_embeddings, "answers": model.head.out_features},
    }
    if words is not None and answers is not None and backbone is not None and features is not None:
        folder = AnsweringFolder(place.path)
        folder.put_vocabulary(words, answers)
        save_backbone(backbone, folder.backbone)
        config |= {
            "words": words.fingerprint,
            "answers": answers.fingerprint,
            "backbone": features.to_json() | {"name": folder.backbone.name, "end_to_end": False},
        }
    place.write(config, model.state_dict())


def open_model(place: ModelFolder) -> MCAN:
    """The network of a model saved as on the Hub, or of the newest checkpoint of a run."""
    if not place.weights.is_file() and latest(place.path) is not None:
        return load_run(place.path).model
    settings = place.settings(KIND)
    place.refuse(settings.keys() - _KEYS)
    with place.describing("model that answers"):
        sizes = settings["vocabulary"]
        model = _make_model(settings, sizes["words"], sizes["answers"])
    place.fill(model)
    return model.eval()


def _make_model(config: dict[str, Any], words: int, answers: int) -> MCAN:
    """The network that a config describes, with random weights."""
    height, width = config["cells"]
    settings = ModelSettings.from_json(config["model"])
    return MCAN(settings, vocabulary=words, answers=answers, cells=(height, width), features=config["features"])


def load_run(source: Path | str) -> Run:
    """The model of the newest checkpoint of a run, of one checkpoint, or of a folder saved as on the Hub."""
    path = Path(source)
    checkpoint = latest(path)
    if checkpoint is None and (checkpoint := Checkpoint.at(path)) is not None:
        path = checkpoint.run
    place, folder = ModelFolder(path), AnsweringFolder(path)
    if checkpoint is None and not place.weights.is_file():
        raise Problem(f"{path} has no checkpoint. Name the folder of a run: regard train --out {path}")
    config = checkpoint.config if checkpoint is not None else place.config()
    if config.get("kind") != KIND:
        raise Problem(f"{path} holds a model of kind {config.get('kind')!r}, not one that answers questions.")
    if checkpoint is None and "words" not in config:
        raise Problem(f"{path} has the network alone, without words and answers. Load it with MCAN.from_pretrained.")
    words, answers = folder.read_vocabulary()
    check_vocabulary(str(folder.vocabulary), words.fingerprint, config["words"])
    check_vocabulary(str(folder.vocabulary), answers.fingerprint, config["answers"])
    if checkpoint is None:
        return Run(folder, config, open_model(place), words, answers)
    model = _make_model(config, len(words), len(answers))
    weights = checkpoint.weights()
    model.load_state_dict({n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")})
    return Run(folder, config, model.eval(), words, answers)


def changed_run(run: Run, changes: Mapping[str, Any]) -> Run:
    """The run with other settings of its model and the same weights; a Problem if a change needs other weights.

    `run`: not changed.
    `changes`: of `ModelSettings`, by name.
    """
    model = run.model
    try:
        settings = changed(model.settings, changes)
        other = MCAN(
            settings,
            vocabulary=model.embedding.num_embeddings,
            answers=model.head.out_features,
            cells=model.cells,
            features=len(model.feature_mean),
        )
    except (ValueError, TypeError) as error:
        raise Problem(" ".join(str(error).split())) from error
    try:
        other.load_state_dict(model.state_dict())
    except RuntimeError as error:
        names = ", ".join(changes)
        raise Problem(
            f"{run.folder.path} was trained with other {names}, which have weights. Train another."
        ) from error
    return replace(run, model=other.eval())
