"""Do features tell shape from colour? Linear maps from the features around objects, on pairs that were never seen.

    python -m benchmarks.unseen_pairs FEATURES [SEED]

FEATURES were made of `regard scenes` with that seed (default 0) and the splits train, test and pairs. A linear map by
ridge regression goes from the 3 x 3 cells around an object's centre to its shape, another to its colour, learned from
the labels of the objects of the first training scenes. It answers no question, and has no words: what it misses on
objects of a held-out pair of colour and shape, and finds on others, lies in the features and in the pairs that are
held out of the training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from regard.scenes import COLOURS, HELD_OUT, SHAPES, Scenes
from regard.scenes.splits import Split
from regard.vqa.feature_store import FeatureStore

LEARNED_SCENES, TESTED_SCENES, READ_AT_ONCE = 5000, 1000, 100
PENALTY = 30.0  # of the ridge regression, on features of unit variance


class Objects(NamedTuple):
    """Objects: features of 3 x 3 cells (N, D), numbers of shape and colour, and whether the pair is held out, (N,)."""

    features: Tensor
    shape: Tensor
    colour: Tensor
    unseen: Tensor


def main(features: Path, seed: int) -> None:
    """Print how many shapes and colours are right, on pairs of the training and on unseen ones."""
    torch.set_num_threads(1)
    store = FeatureStore.open(features)
    train, test, pairs = (objects_of(store, split, seed) for split in ("train", "test", "pairs"))
    mean, deviation = train.features.mean(0), train.features.std(0) + 1e-3

    def inputs(objects: Objects) -> Tensor:
        scaled = (objects.features - mean) / deviation
        return torch.cat([scaled, torch.ones(len(scaled), 1)], 1)

    x, unseen = inputs(train), pairs.unseen
    gram = x.T @ x + PENALTY * torch.eye(x.shape[1])
    for name, values in (("shape", SHAPES), ("colour", tuple(COLOURS))):
        targets = one_hot(getattr(train, name), len(values)).float()
        weight = torch.linalg.solve(gram, x.T @ targets)
        seen_right = (inputs(test) @ weight).argmax(1) == getattr(test, name)
        unseen_right = ((inputs(pairs) @ weight).argmax(1) == getattr(pairs, name))[unseen]
        print(f"{name:6} of {len(seen_right)} objects of seen pairs {100 * seen_right.float().mean():.1f} %", end=", ")
        print(f"of {len(unseen_right)} of unseen ones {100 * unseen_right.float().mean():.1f} %")


def objects_of(store: FeatureStore, split: Split, seed: int) -> Objects:
    """The objects of the first scenes of a split that have features."""
    count = LEARNED_SCENES if split == "train" else TESTED_SCENES
    names = [name for number in range(count) if store.has(name := f"COCO_{split}_{number:012d}")]
    scenes = Scenes(split, len(names), seed)
    around, labels = [], []
    for start in range(0, len(names), READ_AT_ONCE):
        grids = store[names[start : start + READ_AT_ONCE]].float()
        height, width = grids.shape[1:3]
        for number, grid in enumerate(pad(grids, (0, 0, 1, 1, 1, 1)), start):
            for thing in scenes.scene(number).things:
                row, column = int(thing.y * height), int(thing.x * width)
                around.append(grid[row : row + 3, column : column + 3].flatten())
                pair = (thing.colour, thing.shape)
                labels.append((SHAPES.index(thing.shape), tuple(COLOURS).index(thing.colour), int(pair in HELD_OUT)))
    shape, colour, unseen = torch.tensor(labels).T
    return Objects(torch.stack(around), shape, colour, unseen.bool())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
