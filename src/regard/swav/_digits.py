"""A data set that needs no download: scikit-learn's digits."""

from __future__ import annotations

import torch

from regard.pictures import Arrays
from regard.training import generator

TEST = 500  # pictures to test on


def digits() -> tuple[Arrays, Arrays]:
    """1,297 pictures of handwritten digits to learn from and 500 to test on, 16 x 16, each with its label.

    They are 8 x 8 with 17 shades of grey, and enlarged here.

    >>> learn, test = digits()
    >>> len(learn), len(test), learn[0].shape, len(learn.classes)
    (1297, 500, torch.Size([3, 16, 16]), 10)
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped,unused-ignore]

    bunch = load_digits()
    x = torch.from_numpy(bunch.images / 16).float().unsqueeze(1)
    x = torch.nn.functional.interpolate(x, (16, 16), mode="bilinear", align_corners=False).clamp(0, 1)
    order = torch.randperm(len(x), generator=generator(2024))
    train, test = order[TEST:], order[:TEST]
    labels = torch.from_numpy(bunch.target)
    return Arrays(x[train], labels[train].tolist()), Arrays(x[test], labels[test].tolist())
