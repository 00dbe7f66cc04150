"""Deletion and insertion, cell by cell and picture by picture: what the measure means, and slow."""

from itertools import pairwise

import torch

from reference.quality import cell_at


def hidden_picture(whole, kept, how):
    """A prepared picture (3, H, W) with the mean of each channel, or other pixels, where a cell is not kept."""
    _, height, width = whole.shape
    rows, columns = kept.shape
    out = whole.clone()
    for y in range(height):
        for x in range(width):
            if not kept[cell_at(y, height, rows), cell_at(x, width, columns)]:
                out[:, y, x] = whole.mean((1, 2)) if how == "mean" else how[:, y, x]
    return out


def kept_at(importance, ties, share, insertion):
    """The cells that are kept when a share of them is hidden, or shown: the highest first, equal ones by `ties`."""
    order = sorted(range(len(importance)), key=lambda i: (-importance[i], -ties[i]))
    count = int(share * len(order) + 0.5)
    return [(i in order[:count]) == insertion for i in range(len(order))]


def area(scores):
    """By trapezoids, over shares from 0 to 1."""
    return sum((a + b) / 2 for a, b in pairwise(scores)) / (len(scores) - 1)


def curve(importance, ties, steps, insertion, see, score):
    """The score at each share; `see` makes features of the cells that are kept, `score` takes them."""
    scores = []
    for step in range(steps + 1):
        kept = torch.tensor(kept_at(importance, ties, step / steps, insertion))
        scores.append(score(see(kept)))
    return scores
