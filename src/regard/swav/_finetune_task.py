"""What `finetune` trains: a backbone with a linear layer, and labelled pictures as its data."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.backbones import Backbone, fingerprint
from regard.swav._canvases import Canvases
from regard.swav._crops import one_view
from regard.swav._finetune_settings import FinetuneSettings, views_of
from regard.swav._labelled import Subset
from regard.swav._notes import Notes
from regard.training import Task, mix


class FineTune(Task):
    """A backbone with a linear layer on its pooled features, trained by SGD with two learning rates.

    Each picture is seen in one random crop, mirrored at random. If `settings.frozen`, the backbone is in evaluation
    mode, and only the linear layer is trained.

    `backbone`: changed in place.
    `classes`: their names.
    `settings`: of the run.

    >>> from regard.backbones import make_backbone
    >>> tiny = make_backbone("small", widths=[4], depths=[1], size=8)
    >>> task = FineTune(tiny, ["cat", "dog"], FinetuneSettings())
    >>> task.probabilities(torch.zeros(5, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([5, 2])
    """

    def __init__(self, backbone: Backbone, classes: list[str], settings: FinetuneSettings) -> None:
        super().__init__()
        self.backbone, self.classes, self.settings = backbone, classes, settings
        self.origin = fingerprint(backbone)
        self.head = nn.Linear(backbone.dim, len(classes))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        if settings.frozen:
            backbone.requires_grad_(False)
        self.notes = Notes()
        self.train()

    @property
    def config(self) -> dict[str, Any]:  # type: ignore[override]
        """Settings, classes, and the backbone that it begins with."""
        parts = {"settings": self.settings.as_dict(), "classes": self.classes, "origin": self.origin}
        return {"kind": "finetune", **parts, "backbone": self.backbone.config}

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.settings.frozen:
            self.backbone.eval()
        return self

    def scores(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of prepared pictures (B, 3, s, s)."""
        out: Tensor = self.head(self.backbone.pooled(x))
        return out.float()

    @torch.no_grad()
    def probabilities(self, pictures: Tensor) -> Tensor:
        """Probabilities (B, classes) of pictures (B, 3, H, W) uint8, in evaluation mode."""
        training = self.training
        self.eval()
        found = self.scores(self.backbone.prepare(pictures.to(self.head.weight.device))).softmax(-1).cpu()
        self.train(training)
        return found

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The cross entropy of a batch of `LabelledCanvases`, and the share that is right."""
        self.notes.add(batch.get("broken", ()), batch.get("retried", ()))
        with torch.no_grad():
            crops = views_of(self.settings, self.backbone.preparation.size)
            seed = mix(self.settings.seed, batch["epoch"])
            x = one_view(batch["pictures"], batch["aspect"], batch["index"], crops, seed)
            x = self.backbone.preparation.normalise(x)
        scores = self.scores(x)
        right = (scores.detach().argmax(-1) == batch["labels"]).float().mean()
        numbers: dict[str, Any] = {"accuracy": right}
        if "retried" in batch:  # in all processes or in none
            numbers["noted"] = lambda: self.notes.numbers(scores.device)
        return cross_entropy(scores, batch["labels"]), numbers

    def optimizer(self) -> torch.optim.Optimizer:
        """SGD with one learning rate for the backbone and one for the linear layer."""
        settings = self.settings
        parts: list[dict[str, Any]] = (
            [] if settings.frozen else [{"params": list(self.backbone.parameters()), "lr": settings.lr}]
        )
        parts.append({"params": list(self.head.parameters()), "lr": settings.lr_head})
        return torch.optim.SGD(parts, momentum=settings.momentum, weight_decay=settings.weight_decay)

    def extra_state(self) -> dict[str, Any]:
        """None; what was noted until now is written beside."""
        self.notes.write()
        return {}


class LabelledCanvases:
    """Labelled pictures resized to squares, as data for `fit`: batches of `Canvases` with their labels.

    >>> from regard.pictures import Arrays
    >>> pictures = Arrays(torch.rand(4, 3, 8, 8), [0, 1, 1, 0])
    >>> LabelledCanvases(Subset(pictures, [1, 3]), side=8).batch([0, 1], epoch=0)["labels"]
    tensor([1, 0])
    """

    def __init__(self, pictures: Subset, side: int, keep: bool = True) -> None:
        self._canvases = Canvases(pictures, side, keep)
        self._labels = torch.tensor(pictures.labels)

    def __len__(self) -> int:
        return len(self._canvases)

    def faults(self) -> list[tuple[str, str]]:
        """As `Canvases.faults`."""
        return self._canvases.faults()

    def batch(self, indices: list[int], epoch: int) -> dict[str, Any]:
        """As `Canvases.batch`, with the labels (B,) of what was taken: a broken picture is replaced by the next."""
        batch = self._canvases.batch(indices, epoch)
        return {**batch, "labels": self._labels[batch["taken"]]}
