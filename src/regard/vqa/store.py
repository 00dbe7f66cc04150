"""A model that answers, written by the conventions of the Hub, and read back from that or from a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard._problem import Problem
from regard.backbones import Backbone, load_backbone, save_backbone
from regard.hub.model_folder import ModelFolder
from regard.training import Checkpoint, latest
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
    """A trained model with what belongs to it."""

    folder: AnsweringFolder
    config: dict[str, Any]
    model: MCAN
    words: Words
    answers: Answers

    @cached_property
    def features(self) -> FeatureDescription:
        """What the model takes; a backbone that was trained along is described as it is now."""
        written = FeatureDescription.from_json(self.config["backbone"])
        if self.config["backbone"].get("end_to_end"):
            return FeatureDescription.of(self._open_backbone(), written.name)
        return written

    def trained_on(self, pictures: set[str]) -> int | None:
        """How many of these pictures have the name of one that it was trained on; None if that is not known."""
        known = self.folder.read_pictures()
        return None if known is None else len(pictures & known)

    @property
    def _backbone_source(self) -> Path | str:
        """Its own copy of the backbone, or else where the features' was."""
        copy = self.folder.backbone
        return copy if copy.is_dir() else FeatureDescription.from_json(self.config["backbone"]).name

    def _open_backbone(self) -> Backbone:
        return load_backbone(self._backbone_source)

    def load_backbone(self) -> Backbone:
        """The backbone, after checking that it is the one."""
        backbone = self._open_backbone()
        if self.config["backbone"].get("end_to_end"):
            return backbone
        own = FeatureDescription.of(backbone, str(self._backbone_source), self.features.stages)
        if difference := own.difference(self.features):
            raise Problem(
                f"the backbone in {own.name} does not make the features that the model was trained on: {difference}. "
                "Put the right one there."
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
    """Write a model by the conventions of the Hub: the network, and with it what is needed to ask it."""
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
    """The network of a model that was saved by the conventions of the Hub, or the newest of a run."""
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
    """The network of a config, with weights of its own."""
    height, width = config["cells"]
    settings = ModelSettings(**config["model"])
    return MCAN(settings, vocabulary=words, answers=answers, cells=(height, width), features=config["features"])


def load_run(source: Path | str) -> Run:
    """The newest model of a run's folder, that of one checkpoint in it, or one saved by the conventions of the Hub."""
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
