"""Blind attention, to compare that of a model with: maps that are the same for every picture and question.

On photographs the thing that is asked about tends to be large and in the middle, so that a blob there scores well
without a look at the picture: the quality of an attention says little unless it is above these.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from regard.continuous import Gaussian
from regard.vqa.attention_quality import AttentionQuality, attention_quality, concatenate, quality_of
from regard.vqa.evaluate import Means, means_of
from regard.vqa.examples import Examples

EVEN, CENTRED = "even spread", "centred blob"
BLOB_DEVIATION = 0.25  # of the picture's side: standard deviation of the centred blob
_BATCH = 64  # questions at a time


def centred_blob(height: int, width: int) -> Tensor:
    """A Gaussian in the centre of the picture, as mass on each pixel (H, W), that sums to one.

    >>> centred_blob(3, 3)[1, 1] > centred_blob(3, 3)[0, 1]
    tensor(True)
    """
    blob = Gaussian(torch.full((2,), 0.5), BLOB_DEVIATION**2 * torch.eye(2)).pdf_on_grid(height, width)
    return blob / blob.sum()


def blind_quality(examples: Examples, cells: tuple[int, int]) -> dict[str, Means]:
    """The mean quality of each blind attention, by stratum and measure, as of an evaluation; empty without regions.

    `examples`: whose regions they are compared with.
    `cells`: the grid of the model: the even spread is over its cells, ranks are over them.
    """
    if not examples.has_regions:
        return {}
    starts = range(0, len(examples), _BATCH)
    regions = (examples.regions(list(range(start, min(start + _BATCH, len(examples))))) for start in starts)
    measured = blind_measures(regions, cells)
    return {name: means_of(quality, examples.questions) for name, quality in measured.items()}


def blind_measures(regions: Iterable[Tensor], cells: tuple[int, int]) -> dict[str, AttentionQuality]:
    """The quality of each blind attention against regions (B, H, W), given in batches; arguments as `blind_quality`.

    >>> half = torch.zeros(1, 8, 8, dtype=torch.bool)
    >>> half[:, :4] = True
    >>> {name: round(float(quality.mass), 3) for name, quality in blind_measures([half], (2, 2)).items()}
    {'even spread': 0.5, 'centred blob': 0.5}
    """
    parts: dict[str, list[AttentionQuality]] = {EVEN: [], CENTRED: []}
    for batch in regions:
        blob = centred_blob(batch.shape[1], batch.shape[2])
        parts[EVEN].append(quality_of(torch.full((len(batch), *cells), 1 / (cells[0] * cells[1])), None, batch))
        parts[CENTRED] += [attention_quality(blob.expand_as(few), few, cells) for few in batch.split(4)]
    return {name: concatenate(measured) for name, measured in parts.items()}
