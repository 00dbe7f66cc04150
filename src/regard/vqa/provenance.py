"""What a model that answers is trained on: questions, answers and the content of the pictures, as one digest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.training._data import DataDescription
from regard.vqa.feature_store import FeatureStore
from regard.vqa.pixels import PixelStore
from regard.vqa.records import Records


def training_data(
    records: Records, store: FeatureStore | PixelStore, validation: Records | None = None
) -> DataDescription:
    """The description of training data: of its questions with their answers, in order, and of their pictures.

    `records`: those with answers.
    `store`: the features of their pictures.
    `validation`: records that decide when the training stops; default None.
    """
    names = sorted({record.picture for record in records.records})

    def parts() -> Iterator[Any]:
        for part in (records, validation):
            yield from ((r.picture, r.question, r.answers) for r in (part.records if part else ()))
            yield "end"
        yield from zip(names, store.contents(names), strict=True)

    place = next((str(records.pictures[name].parent) for name in names if name in records.pictures), "another place")
    text = f"{len(records)} questions about {len(names)} pictures in {place} ({records.name})"
    return DataDescription.of(text, parts())
