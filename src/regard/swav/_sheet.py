"""A sheet with the nearest pictures of each prototype: what the clusters are, at a glance."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard._files import replacing
from regard.pictures import Pictures, square, take
from regard.swav._model import Swav
from regard.training import generator


@torch.no_grad()
def nearest(task: Swav, x: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """The `each` nearest pictures of each prototype, (K, each), and the share of pictures it is nearest to, (K,)."""
    task.eval()
    device = task.prototypes.weight.device
    scores = torch.cat([task.scores(task.embed(task.backbone.prepare(p.to(device)))).cpu() for p in x.split(256)])
    share = torch.bincount(scores.argmax(-1), minlength=scores.shape[1]) / len(x)
    return scores.topk(min(each, len(x)), dim=0).indices.T, share


def sheet(task: Swav, pictures: Pictures, path: Path | str, *, each: int = 8, most: int = 2000, rows: int = 30) -> Path:
    """Write the sheet: a row for each of the `rows` largest prototypes, its share of the pictures, its nearest ones.

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

    chosen = torch.randperm(len(pictures), generator=generator(0, 97))[:most].tolist()
    x = torch.stack([square(take(pictures, i).picture, task.settings.crops.size) for i in chosen])
    index, share = nearest(task, x, each)
    largest = share.argsort(descending=True)[:rows]
    halves = 2 if len(largest) > 8 else 1  # two columns of prototypes make a better page
    lines = -(-len(largest) // halves)
    figure = Figure(figsize=(halves * (each * 0.5 + 1.0), lines * 0.52 + 0.5), dpi=120)
    figure.text(0.01, 1 - 0.15 / figure.get_figheight(), "Prototypes and their nearest pictures", va="top", fontsize=9)
    grid = figure.add_gridspec(
        lines,
        halves,
        left=0.01,
        right=0.99,
        bottom=0.01,
        top=1 - 0.42 / figure.get_figheight(),
        hspace=0.06,
        wspace=0.02,
    )
    for place, number in enumerate(largest.tolist()):
        axes = figure.add_subplot(grid[place % lines, place // lines])
        axes.axis("off")
        strip = torch.cat(list(x[index[number]]), dim=-1).permute(1, 2, 0).numpy()
        side = x.shape[-1]
        axes.imshow(strip, extent=(0, strip.shape[1], side, 0), interpolation="nearest")
        axes.set_xlim(-1.7 * side, strip.shape[1])
        axes.text(-0.15 * side, side / 2, f"{number}: {100 * share[number]:.1f} %", ha="right", va="center", fontsize=7)
    path = Path(path)
    with replacing(path) as beside:
        figure.savefig(beside, format="png")
    return path
