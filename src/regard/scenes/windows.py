"""Pieces of pictures with something in them: what pretraining without labels learns shapes from."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import _check


def windows(pictures: Tensor, side: int = 28, each: int = 3, tries: int = 8, seed: int = 0) -> Tensor:
    """Square pieces (N * each, 3, side, side) of pictures (N, 3, H, W): of `tries` at random, those that vary most.

    A whole scene holds several objects, and telling scenes apart takes their colours alone; a piece holds about one,
    and telling pieces apart takes its shape. No label is used. Deterministic in the seed.

    >>> from regard.scenes import Scenes
    >>> windows(Scenes("train", 2).pictures).shape
    torch.Size([6, 3, 28, 28])
    """
    _check.count("side", side)
    _check.count("each", each)
    height, width = pictures.shape[-2:]
    if side > min(height, width) or tries < each:
        got = f"side {side}, each {each}, tries {tries}"
        _check.complain("side", got, f"at most {min(height, width)}, and each <= tries", "Choose smaller ones.")
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, height - side + 1, (len(pictures), tries), generator=draw).tolist()
    columns = torch.randint(0, width - side + 1, (len(pictures), tries), generator=draw).tolist()
    kept, edge = [], side // 5
    for picture, ys, xs in zip(pictures, rows, columns, strict=True):
        pieces = torch.stack([picture[:, y : y + side, x : x + side] for y, x in zip(ys, xs, strict=True)])
        middle = pieces[..., edge : side - edge, edge : side - edge].float()
        kept.append(pieces[middle.var((-2, -1)).mean(1).topk(each).indices])
    return torch.cat(kept)
