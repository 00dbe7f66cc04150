"""SwAV as a task: backbone, projection, prototypes, codes and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize

from regard.backbones import Backbone
from regard.swav._bank import Bank, first_centroids, spherical_kmeans
from regard.swav._crops import views
from regard.swav._diagnose import measure
from regard.swav._loss import assigned_loss, codes, swapped_loss
from regard.swav._notes import Notes
from regard.swav._queue import Queue, world
from regard.swav._settings import Settings
from regard.training import LARC, LARS, Task, groups, mix


class Swav(Task):
    """Swapped assignments between views (Caron et al. 2020), with the backbone that it trains.

    The projection is two linear layers with a batch norm; prototypes are the weight (K, dim) of a linear layer without
    bias, with rows of unit length, frozen in the first `freeze` steps.

    With `codes` "kmeans" (DeepCluster-v2) and "sela" (SeLa-v2) samples are assigned to prototypes once per epoch, from
    the embeddings of the first view that were stored in the epoch before, at first by a pass over the whole set. The
    prototypes of k-means are its centroids, and are not trained.

    >>> from regard.backbones import make_backbone
    >>> task = Swav(make_backbone("small", widths=[4], depths=[1], size=16), Settings(prototypes=5, dim=8))
    >>> z = task.eval().embed(torch.randn(2, 3, 16, 16))
    >>> z.shape, task.scores(z).shape
    (torch.Size([2, 8]), torch.Size([2, 5]))
    """

    def __init__(self, backbone: Backbone, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.backbone = backbone
        self.projection = nn.Sequential(
            nn.Linear(backbone.dim, settings.hidden, bias=False),
            nn.BatchNorm1d(settings.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(settings.hidden, settings.dim),
        )
        self.prototypes = nn.Linear(settings.dim, settings.prototypes, bias=False)
        self.queue = Queue(settings.queue, settings.dim)
        self.bank = Bank(settings.dim)
        self.steps_done = 0
        self.notes = Notes()
        self._unit_prototypes()

    @property
    def config(self) -> dict[str, Any]:  # type: ignore[override]
        """Settings and backbone; without the number of steps, so that a run can be prolonged."""
        settings = {k: v for k, v in self.settings.as_dict().items() if k not in ("steps",)}
        return {"kind": "swav", "settings": settings, "backbone": self.backbone.config}

    def embed(self, x: Tensor) -> Tensor:
        """Unit vectors (B, dim) of normalised pictures (B, 3, s, s)."""
        z = self.projection(self.backbone.pooled(x))
        return normalize(z.float(), dim=-1)

    def scores(self, z: Tensor) -> Tensor:
        """Cosines to the prototypes (B, K), never in half precision."""
        with torch.autocast(z.device.type, enabled=False):
            out: Tensor = self.prototypes(z.float())
        return out

    def before_training(self, samples: int, batches: Callable[[], Iterator[Any]]) -> None:
        """Store the embeddings of the whole set, if samples are to be assigned by them."""
        if self.settings.codes == "sinkhorn":
            return
        self.bank.begin(samples)
        with torch.no_grad():
            for batch in batches():
                z = self._embedded(batch, local=0)
                self.bank.push(batch["index"], z[0])

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The loss of a batch of `Canvases`."""
        settings = self.settings
        self.notes.add(batch.get("broken", ()), batch.get("retried", ()))
        group = dist.group.WORLD if world()[1] > 1 else None
        whole_set = settings.codes != "sinkhorn"
        if whole_set and batch["epoch"] != self.bank.epoch:
            self._assign(batch["epoch"], group)
        z = self._embedded(batch, settings.crops.local)
        scores = self.scores(z)
        if whole_set:
            labels, code = self.bank.code(batch["index"], settings.prototypes)
            self.bank.push(batch["index"], z[0])
            code, residual = code.expand(2, -1, -1), scores.new_full((2,), self.bank.residual)
            loss = assigned_loss(scores, labels, settings.temperature, group=group)
        else:
            code, residual = self._codes(scores, group)
            if batch["epoch"] >= settings.queue_epoch and self.steps_done >= settings.queue_step:
                self.queue.push(z[:2])
            loss = swapped_loss(scores, code, settings.temperature)
        # A measurement solves an eigenvalue problem: only for the steps that are logged.
        tensors = (loss.detach(), scores[:2].detach(), code, z[:2].detach(), residual)
        numbers: dict[str, Any] = {"measured": lambda: measure(*tensors)}
        if "retried" in batch:  # in all processes or in none
            numbers["noted"] = lambda: self.notes.numbers(z.device)
        return loss, numbers

    def _embedded(self, batch: dict[str, Any], local: int) -> Tensor:
        """Unit vectors (V, B, dim) of the two large views and of `local` small ones of each sample."""
        settings = self.settings
        crops = replace(settings.crops, local=local)
        with torch.no_grad():
            seed = mix(settings.seed, batch["epoch"])
            cut = views(batch["pictures"], batch["aspect"], batch["index"], crops, seed)
            cut = [self.backbone.preparation.normalise(c) for c in cut]
        return torch.cat([self.embed(c) for c in cut]).view(crops.views, -1, settings.dim)

    @torch.no_grad()
    def _codes(self, scores: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
        """The codes (2, B, K) of the large views, balanced over the batch and the queue, and Sinkhorn's residuals."""
        settings = self.settings
        queued = self.scores(self.queue.rows) if self.queue.full else None
        if group is not None:  # both problems at once: half as many exchanges, each of which waits for all processes
            code, transport = codes(scores[:2], settings.eps, settings.iterations, queued=queued, group=group)
            return code, transport.residual
        past = (None, None) if queued is None else queued
        plans = [codes(scores[i], settings.eps, settings.iterations, queued=past[i], group=group) for i in (0, 1)]
        return torch.stack([code for code, _ in plans]), torch.stack([transport.residual for _, transport in plans])

    @torch.no_grad()
    def _assign(self, epoch: int, group: dist.ProcessGroup | None) -> None:
        """Assign all samples to prototypes for an epoch, from the stored embeddings."""
        settings, bank = self.settings, self.bank
        index, rows = bank.take()
        rows = rows.to(self.prototypes.weight.device)
        if settings.codes == "kmeans":
            first = first_centroids(index, rows, settings.prototypes, len(bank.labels), mix(settings.seed, epoch))
            centroids, labels = spherical_kmeans(rows, first, settings.iterations, group=group)
            self.prototypes.weight.copy_(centroids)
            bank.assign(epoch, index, labels)
        else:
            code, transport = codes(self.scores(rows), settings.eps, settings.iterations, group=group)
            bank.assign(epoch, index, code.argmax(-1), float(transport.residual))

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW or LARS, without weight decay on norms, biases and prototypes, whose length is fixed; LARC with it."""
        settings, prototypes = self.settings, self.prototypes.weight
        rate = settings.lr * settings.prototype_lr
        if settings.optimizer == "larc":  # decay on all parameters, as published
            others = [p for p in self.parameters() if p is not prototypes]
            return LARC(
                [{"params": others}, {"params": [prototypes], "lr": rate}],
                lr=settings.lr,
                weight_decay=settings.weight_decay,
            )
        parts = [
            {**part, "params": [p for p in part["params"] if p is not prototypes]}
            for part in groups(self, settings.weight_decay)
        ]
        parts.append({"params": [prototypes], "lr": rate, "weight_decay": 0.0})
        return (LARS if settings.optimizer == "lars" else torch.optim.AdamW)(parts, lr=settings.lr)

    def before_update(self, step: int) -> None:
        """Freeze the prototypes in the first steps, and those that are centroids always."""
        if step < self.settings.freeze or self.settings.codes == "kmeans":
            self.prototypes.weight.grad = None

    def after_update(self, step: int) -> None:
        """Normalise the prototypes to unit length."""
        self.steps_done = step + 1
        self._unit_prototypes()

    def extra_state(self) -> dict[str, Any]:
        """Queue, stored embeddings and assignments, and steps; what was noted until now is written beside."""
        self.notes.write()
        state = {"queue": self.queue.state(), "steps_done": self.steps_done}
        return state if self.settings.codes == "sinkhorn" else {**state, "bank": self.bank.state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.queue.load(state["queue"])
        self.steps_done = int(state["steps_done"])
        if "bank" in state:
            self.bank.load(state["bank"])

    @torch.no_grad()
    def _unit_prototypes(self) -> None:
        self.prototypes.weight.copy_(normalize(self.prototypes.weight, dim=-1))
