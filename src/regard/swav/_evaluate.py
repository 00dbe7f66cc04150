"""Evaluation of features: nearest neighbours and a linear probe, compared with an untrained backbone and pixels."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from regard._problem import Problem
from regard.backbones import Backbone
from regard.backbones import untrained as untrained_twin
from regard.pictures import Pictures, square, take
from regard.training import generator
from regard.training._random import drawn
from regard.training._together import Together


@dataclass(frozen=True)
class Proportion:
    """A share of right answers among `count`, with its 95 % confidence interval (Wilson).

    >>> print(Proportion(90, 100))
    90.0 % (82.6 to 94.5)
    """

    right: float  # answers that are right in part count in part
    count: int

    @property
    def share(self) -> float:
        """The share itself."""
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 95 % confidence interval."""
        z, n, p = 1.96, self.count, self.share
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True)
class BackboneEvaluation:
    """Accuracy of k-nearest neighbours and of a linear probe on test pictures.

    >>> same = Proportion(90, 100)
    >>> print(BackboneEvaluation(same, same, same, same, same, 300, 100).table().splitlines()[1])
    this backbone       90.0 % (82.6 to 94.5)     90.0 % (82.6 to 94.5)
    """

    knn: Proportion
    probe: Proportion
    untrained_knn: Proportion
    untrained_probe: Proportion
    pixels_knn: Proportion
    train: int
    test: int

    def table(self) -> str:
        """A table as text."""
        rows = [
            ("", f"{NEIGHBOURS}-NN", "linear probe"),
            ("this backbone", str(self.knn), str(self.probe)),
            ("the same untrained", str(self.untrained_knn), str(self.untrained_probe)),
            ("raw pixels", str(self.pixels_knn), ""),
        ]
        lines = [f"{a:<20}{b:<26}{c}".rstrip() for a, b, c in rows]
        return "\n".join([*lines, f"{self.train} pictures to learn from, {self.test} to test on; 95 % intervals"])

    def as_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


NEIGHBOURS = 10


def evaluate_backbone(
    backbone: Backbone,
    pictures: Pictures,
    test: Pictures | None = None,
    *,
    test_share: float = 0.25,
    seed: int = 0,
    most: int = 20_000,
    group: Together | None = None,
) -> BackboneEvaluation:
    """Evaluate a backbone on labelled pictures; broken pictures are left out.

    `backbone`: not changed.
    `pictures`: to learn from, and without `test` to test on.
    `test`: pictures to test on; default None, a part of `pictures`.
    `test_share`: of that part; default 0.25.
    `seed`: of the split, and of the untrained backbone; default 0.
    `most`: at most so many pictures are learned from, and as many tested on; default 20,000.
    `group`: processes that share reading and features, and all return the whole; default None, this one alone.

    >>> from regard.backbones import make_backbone
    >>> from regard.pictures import Arrays
    >>> dark_and_light = torch.rand(40, 3, 8, 8) / 2 + torch.tensor([0, 0.5]).repeat(20).view(-1, 1, 1, 1)
    >>> pictures = Arrays(dark_and_light, [0, 1] * 20)
    >>> evaluate_backbone(make_backbone("small", widths=[4], depths=[1], size=8), pictures).pixels_knn.count
    10
    """
    group = group or Together()
    x, y = gather(pictures, backbone.preparation.size, most * 2, seed, group)
    if test is None:
        order = torch.randperm(len(x), generator=generator(seed, 99))
        cut = max(1, round(len(x) * test_share))
        parts = order[cut:], order[:cut]
        (x, y), (x_test, y_test) = ((x[p], y[p]) for p in parts)
    else:
        x_test, y_test = gather(test, backbone.preparation.size, most, seed, group)
    x, y = x[:most], y[:most]
    if len(x) < NEIGHBOURS or not len(x_test):
        raise Problem(f"{len(x)} labelled pictures are too few to evaluate with. Give {2 * NEIGHBOURS} or more.")
    device = next(backbone.parameters()).device
    networks = (backbone, calibrated(untrained_twin(backbone, seed).to(device), x))
    trained, random = (tuple(pooled_features(n, part, group=group) for part in (x, x_test)) for n in networks)
    pixels = [p.float().flatten(1) / 255 for p in (x, x_test)]
    return BackboneEvaluation(
        knn=knn(trained[0], y, trained[1], y_test),
        probe=probe(trained[0], y, trained[1], y_test),
        untrained_knn=knn(random[0], y, random[1], y_test),
        untrained_probe=probe(random[0], y, random[1], y_test),
        pixels_knn=knn(pixels[0], y, pixels[1], y_test),
        train=len(x),
        test=len(x_test),
    )


def gather(pictures: Pictures, size: int, most: int, seed: int, group: Together | None = None) -> tuple[Tensor, Tensor]:
    """Readable pictures (N, 3, size, size) and their labels (N,), in random order.

    `pictures`: a source with labels.
    `size`: the side to resize to, in pixels.
    `most`: at most so many.
    `seed`: of the choice and the order.
    `group`: processes that share reading, and all return the whole; default None, this one alone.
    """
    if pictures.labels is None:
        raise Problem("these pictures have no labels to evaluate with. Put them in one folder for each class.")
    chosen = drawn(len(pictures), most, seed, 98)
    # Each is resized before the next is read: a few photographs as a camera writes them would fill the memory.
    group = group or Together()
    read = [
        square(taken.picture, size) if (taken := take(pictures, i)).index == i else None for i in group.shares(chosen)
    ]
    everything = zip(group.interleave(read, len(chosen)), chosen, strict=True)
    readable = [(picture, i) for picture, i in everything if picture is not None]
    labels = torch.tensor([pictures.labels[i] for _, i in readable])
    return torch.stack([picture for picture, _ in readable]), labels


@torch.no_grad()
def pooled_features(backbone: Backbone, x: Tensor, batch: int = 256, group: Together | None = None) -> Tensor:
    """Pooled features (N, dim) of pictures (N, 3, H, W) uint8; `group` as in `evaluate_backbone`.

    >>> from regard.backbones import make_backbone
    >>> x = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    >>> pooled_features(make_backbone("small", widths=[4], depths=[1], size=8), x).shape
    torch.Size([5, 4])
    """
    training = backbone.training
    device = next(backbone.parameters()).device
    backbone.eval()
    group = group or Together()
    parts = x.split(batch)
    features = [backbone.pooled(backbone.prepare(part.to(device))).float().cpu() for part in group.shares(parts)]
    backbone.train(training)
    return torch.cat(group.interleave(features, len(parts)))


@torch.no_grad()
def calibrated(backbone: Backbone, x: Tensor, batches: int = 20) -> Backbone:
    """The backbone after updating the running statistics of its batch norms on these pictures; no weight changes."""
    backbone.train()
    device = next(backbone.parameters()).device
    for part in x.split(128)[:batches]:
        if len(part) > 1:
            backbone.pooled(backbone.prepare(part.to(device)))
    return backbone.eval()


def knn(train: Tensor, labels: Tensor, test: Tensor, answers: Tensor, k: int = NEIGHBOURS) -> Proportion:
    """Accuracy of a vote of the nearest neighbours by cosine, each with weight exp(cosine / 0.1).

    `train`, `labels`: features (N, D) and labels (N,) to learn from.
    `test`, `answers`: features (M, D) and labels (M,) to test on.
    `k`: neighbours; default 10.

    >>> x, y = torch.eye(2).repeat(5, 1), torch.tensor([0, 1]).repeat(5)
    >>> print(knn(x, y, x, y, k=3).share)
    1.0
    """
    train, test = normalize(train, dim=-1), normalize(test, dim=-1)
    classes = int(torch.cat([labels, answers]).max()) + 1
    right = 0
    for part, expected in zip(test.split(512), answers.split(512), strict=True):
        cosines, index = (part @ train.T).topk(min(k, len(train)), dim=-1)
        votes = ((cosines / 0.1).exp().unsqueeze(-1) * one_hot(labels[index], classes)).sum(1)
        right += int((votes.argmax(-1) == expected).sum())
    return Proportion(right, len(test))


def probe(train: Tensor, labels: Tensor, test: Tensor, answers: Tensor) -> Proportion:
    """Accuracy of logistic regression on standardised features.

    `train`, `labels`: features (N, D) and labels (N,) to learn from.
    `test`, `answers`: features (M, D) and labels (M,) to test on.

    >>> x, y = torch.eye(2).repeat(5, 1), torch.tensor([0, 1]).repeat(5)
    >>> print(probe(x, y, x, y).share)
    1.0
    """
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped,unused-ignore]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped,unused-ignore]

    if len(labels.unique()) < 2:
        raise Problem("all pictures have the same label. Put them in one folder for each class.")
    scale = StandardScaler().fit(train.double().numpy())
    model = LogisticRegression(C=0.1, max_iter=1000).fit(scale.transform(train.double().numpy()), labels.numpy())
    predictions = torch.from_numpy(model.predict(scale.transform(test.double().numpy())))
    return Proportion(int((predictions == answers).sum()), len(test))
