"""A picture with the nearest pictures of each prototype, for looking at the clusters."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard._files import replacing
from regard.pictures import Pictures, square, take
from regard.swav._model import Swav
from regard.training._random import drawn


@torch.no_grad()
def prototype_scores(task: Swav, x: Tensor) -> Tensor:
    """Cosines of pictures (N, 3, H, W) uint8 to the prototypes: (N, K)."""
    task.eval()
    device = task.prototypes.weight.device
    return torch.cat([task.scores(task.embed(task.backbone.prepare(part.to(device)))).cpu() for part in x.split(256)])


def sheet(task: Swav, pictures: Pictures, path: Path | str, *, each: int = 8, most: int = 2000, rows: int = 30) -> Path:
    """Write `regard.show.prototypes` of a run as a PNG, and return its path.

    `task`: the task of a run, from `run` or `load_pretraining`.
    `pictures`: a source.
    `path`: the PNG to write.
    `each`: pictures per prototype, the nearest first; default 8.
    `most`: at most so many pictures of the source are used, drawn at random; default 2000.
    `rows`: at most so many prototypes, those with the most pictures first; default 30.

    >>> import tempfile
    >>> from regard.backbones import make_backbone
    >>> from regard.pictures import Arrays
    >>> from regard.swav import Settings
    >>> task = Swav(make_backbone("small", widths=[4], depths=[1], size=32), Settings(prototypes=3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sheet(task, Arrays(torch.rand(9, 3, 32, 32)), f"{folder}/prototypes.png").name
    'prototypes.png'
    """
    from matplotlib.figure import Figure

    from regard import show

    indices = drawn(len(pictures), most, 0, 97)
    x = torch.stack([square(take(pictures, i).picture, task.settings.crops.size) for i in indices])
    scores = prototype_scores(task, x)
    sizes = scores.argmax(-1).bincount(minlength=scores.shape[1])
    largest = sizes.argsort(descending=True, stable=True)[:rows].tolist()
    figure = show.prototypes(x, scores, largest, nearest=each, columns=2 if len(largest) > 8 else 1)
    assert isinstance(figure, Figure)
    path = Path(path)
    with replacing(path) as beside:
        figure.savefig(beside, format="png", dpi=72)
    return path
