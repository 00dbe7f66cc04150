"""Model cards of models that answer questions about pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.hub.card import Card
from regard.vqa.results import Results

if TYPE_CHECKING:
    from regard.vqa.mcan import MCAN
    from regard.vqa.predict import Predictor

TASK = "visual-question-answering"
_QUESTION = "What is in the picture?"


def network_card(model: MCAN, name: str, license: str | None) -> Card:
    """The card of the network alone, which takes features and the numbers of words."""
    height, width = model.cells
    code = f"""
import torch
from regard.vqa.mcan import MCAN

model = MCAN.from_pretrained("{name}")
features = torch.randn(1, {height}, {width}, {len(model.feature_mean)})
words = torch.randint(1, {model.embedding.num_embeddings}, (1, {model.settings.tokens}))
scores, looked = model(features, words)
"""
    summary = f"{_network(model)} It takes features of a {height} x {width} grid and the numbers of words."
    return Card(name, summary, TASK, code, model.settings.to_json(), tags=["mcan"], license=license)


def predictor_card(predictor: Predictor, name: str, license: str | None, results: Results | None) -> Card:
    """The card of a whole model, with its backbone and vocabularies.

    `predictor`: the model.
    `name`: the folder or repository that it is loaded from.
    `license`: its identifier; None for none.
    `results`: those of an evaluation; None for none.
    """
    model, size = predictor.model, predictor.backbone.preparation.size
    known = predictor.words.known
    question = _QUESTION if "picture" in known or "what" in known else " ".join(known[:4])
    code = f"""
import torch
from regard.vqa import Predictor

predictor = Predictor.from_pretrained("{name}")
picture = torch.randint(0, 256, (3, {size}, {size}), dtype=torch.uint8)  # or regard.pictures.read("picture.png")
prediction = predictor.ask(picture, "{question}")
print(prediction.answer, prediction.confidence)
print(prediction.weights)  # where it looked, cell by cell
"""
    summary = (
        f"{_network(model)} It knows {len(known)} words and {len(predictor.answers)} answers, and says where it looked."
    )
    attention = predictor.attention
    return Card(
        name,
        summary,
        TASK,
        code,
        {**model.settings.to_json(), "cells": list(model.cells), "backbone": predictor.backbone.config},
        tags=["mcan"],
        license=license,
        sections=[] if results is None else results.sections(attention),
        metrics={} if results is None else results.metrics(attention),
    )


def _network(model: MCAN) -> str:
    """A sentence about the network: its kind, size and output attention."""
    count = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"A modular co-attention network (MCAN) of regard that answers questions about pictures, {count:,} parameters; "
        f"its output attention is {model.attention}."
    )
