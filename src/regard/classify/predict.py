"""Classification of new pictures by a trained head, and where it looked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard._problem import Problem
from regard._rounded import rounded
from regard.backbones import Backbone, load_backbone
from regard.classify.folder import ClassifierFolder
from regard.classify.head import ClassifierHead
from regard.classify.pools import parse_pool
from regard.classify.train import load_head
from regard.continuous import Density
from regard.continuous.members import describe_density, members, on_cpu
from regard.vqa.attention_quality import attention_map, attention_quality
from regard.vqa.description import FeatureDescription
from regard.vqa.grids import grids
from regard.vqa.kinds import Kind

_SIDE = 96  # pixels of a side of the map that entropy and support are measured on


@dataclass(frozen=True)
class Classification:
    """The class of a picture, with the probabilities of the likeliest, and where the classifier looked.

    `answer` is the class, `confidence` its probability, `top` the likeliest classes with theirs, `attention` the pool.
    `weights` (h, w) are those of the cells, `effective` (h, w) the factor of each cell's features, `density` that of a
    continuous attention on the unit square (x to the right, y down), or None. `entropy` is in bits, 0 for an even
    spread; `support_area` is the share of the picture with attention.

    >>> from regard.backbones import make_backbone
    >>> backbone = make_backbone("small", widths=[4], depths=[1], size=16)
    >>> classifier = Classifier(ClassifierHead(4, 2, (16, 16), "continuous-softmax"), backbone, ["cat", "dog"])
    >>> found = classifier.classify(torch.zeros(3, 20, 30, dtype=torch.uint8))
    >>> found.answer, found.confidence, found.weights.shape
    ('cat', 0.5, torch.Size([16, 16]))
    """

    answer: str
    confidence: float
    top: list[tuple[str, float]]
    attention: str
    weights: Tensor
    effective: Tensor
    density: Density | None
    entropy: float
    support_area: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "answer": self.answer,
            "score": round(self.confidence, 6),
            "top": [{"answer": answer, "score": round(score, 6)} for answer, score in self.top],
            "attention": self.attention,
            "weights": rounded(self.weights),
            "effective_weights": rounded(self.effective),
            "density": None if self.density is None else describe_density(self.density),
            "entropy": round(self.entropy, 4),
            "support_area": round(self.support_area, 6),
            "seconds": round(self.seconds, 4),
        }


class Classifier:
    """A trained head with its backbone and the names of its classes, ready for new pictures.

        classifier = Classifier.load("out/photos-classes")
        found = classifier.classify(regard.pictures.read("new.jpg"))

    `head`, `backbone`: put into evaluation mode.
    `classes`: their names.
    `stages`: whether features are the maps of all stages, see `regard.vqa.grids`; default False.

    >>> Classifier.load("nowhere")
    Traceback (most recent call last):
    regard._problem.Problem: nowhere has no classifier. ...
    """

    def __init__(self, head: ClassifierHead, backbone: Backbone, classes: list[str], stages: bool = False) -> None:
        """Put the parts together; `load` reads them from a folder."""
        self.head, self.backbone, self.classes, self.stages = head.eval(), backbone.eval(), classes, stages

    @classmethod
    def load(cls, run: Path | str, pool: str | Kind | None = None) -> Self:
        """The classifier in the folder of a run.

        `run`: the folder.
        `pool`: one of those that were trained in it; default None, the one that was trained last.
        """
        folder = ClassifierFolder(Path(run))
        source = folder.read_source()
        trained = folder.trained()
        if source is None or not trained or not folder.has_backbone:
            raise Problem(f"{run} has no classifier. Train one: regard classify PICTURES --out {run}")
        name = source.pool if pool is None else str(parse_pool(pool))
        if name not in trained:
            raise Problem(f"{run} has no pool {name}. It has {', '.join(trained)}. Train it: --pool {name}")
        task, backbone = load_head(folder.head(name)), load_backbone(folder.backbone)
        made_by = FeatureDescription.of(backbone, str(folder.backbone), source.stages).fingerprint
        if made_by != task.config["features"]:
            raise Problem(f"{folder.backbone} is not the backbone that {name} was trained on. Put the right one back.")
        return cls(task.head, backbone, list(source.classes), source.stages)

    def to(self, device: torch.device | str) -> Self:
        """Classify on a device from now on; what is found is on the CPU all the same."""
        self.head.to(device)
        self.backbone.to(device)
        return self

    @torch.no_grad()
    def classify(self, picture: Tensor, top: int = 5) -> Classification:
        """The class of a picture (3, H, W) uint8; `top` is how many of the likeliest classes to return, default 5."""
        start = time.perf_counter()
        device = next(self.backbone.parameters()).device
        grid = grids(self.backbone, self.backbone.prepare(picture[None].to(device)), self.stages)
        scores, looked = self.head(grid.half().float())  # rounded as stored features are
        best = scores[0].softmax(-1).topk(min(top, len(self.classes)))
        ranked = [(self.classes[i], float(p)) for p, i in zip(best.values, best.indices.tolist(), strict=True)]
        weights, effective = (x[0].float().reshape(self.head.cells).cpu() for x in (looked.weights, looked.effective))
        density = None if looked.density is None else on_cpu(looked.density)
        maps = attention_map(weights[None], density, (_SIDE, _SIDE))
        quality = attention_quality(maps, torch.zeros_like(maps, dtype=torch.bool), self.head.cells)
        return Classification(
            ranked[0][0],
            ranked[0][1],
            ranked,
            str(self.head.pool),
            weights.clone(),
            effective.clone(),
            None if density is None else members(density)[0],
            float(quality.entropy),
            float(quality.support),
            time.perf_counter() - start,
        )
