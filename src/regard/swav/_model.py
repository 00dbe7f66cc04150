"""SwAV as a task: backbone, projection, prototypes, codes and loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize

from regard.backbones import Backbone
from regard.pictures import Arrays, Pictures, square, take
from regard.swav._crops import views
from regard.swav._diagnose import measure
from regard.swav._loss import codes, swapped_loss
from regard.swav._queue import Queue, world
from regard.swav._settings import Settings
from regard.training import LARS, Task, groups, mix

MEMORY = 1 << 29  # bytes of squared pictures that may be cached


class Canvases:
    """Pictures resized to squares of one side, as data for `fit`. A broken one is replaced by the next, and noted.

    They are cached if all fit into `MEMORY` and `keep` is True (default); loader processes would cache each their own.

    >>> from regard.pictures import Arrays
    >>> data = Canvases(Arrays(torch.rand(5, 3, 20, 30)), side=16)
    >>> data.batch([0, 3], epoch=0)["pictures"].shape
    torch.Size([2, 3, 16, 16])
    """

    def __init__(self, pictures: Pictures, side: int, keep: bool = True) -> None:
        self.pictures, self.side = pictures, side
        self._cache: dict[int, tuple[Tensor, float, list[tuple[str, str]]]] = {}
        self._caches = keep and len(pictures) * 3 * side * side <= MEMORY
        self._all: Tensor | None = None
        if isinstance(pictures, Arrays) and pictures.pictures.shape[-2:] == (side, side):
            self._all = pictures.pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, indices: list[int], epoch: int) -> dict[str, Any]:
        """Pictures (B, 3, side, side) uint8, aspect (width over height), index, epoch, and notes on broken files."""
        index = torch.tensor(indices)
        if self._all is not None:
            return {"pictures": self._all[index], "aspect": torch.ones(len(index)), "index": index, "epoch": epoch}
        samples = [self._sample(i) for i in indices]
        return {
            "pictures": torch.stack([picture for picture, _, _ in samples]),
            "aspect": torch.tensor([aspect for _, aspect, _ in samples]),
            "index": index,
            "epoch": epoch,
            "broken": [note for _, _, broken in samples for note in broken],
        }

    def _sample(self, index: int) -> tuple[Tensor, float, list[tuple[str, str]]]:
        if index in self._cache:
            return self._cache[index]
        taken = take(self.pictures, index)
        height, width = taken.picture.shape[-2:]
        sample = (square(taken.picture, self.side), width / height, list(taken.broken))
        if self._caches:
            self._cache[index] = sample
        return sample


class Swav(Task):
    """Swapped assignments between views (Caron et al. 2020), with the backbone that it trains.

    The projection is two linear layers with a batch norm; prototypes are the weight (K, dim) of a linear layer without
    bias, with rows of unit length, frozen in the first `freeze` steps.

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
        self.broken: dict[str, str] = {}
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

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The swapped loss of a batch of `Canvases`."""
        settings = self.settings
        self.broken |= dict(batch.get("broken", ()))
        with torch.no_grad():
            seed = mix(settings.seed, batch["epoch"])
            crops = views(batch["pictures"], batch["aspect"], batch["index"], settings.crops, seed)
            crops = [self.backbone.preparation.normalise(c) for c in crops]
        z = torch.cat([self.embed(c) for c in crops])
        z = z.view(settings.crops.views, -1, settings.dim)
        scores = self.scores(z)
        group = dist.group.WORLD if world()[1] > 1 else None
        with torch.no_grad():
            queued = self.scores(self.queue.rows) if self.queue.full else (None, None)
            plans = [codes(scores[i], settings.eps, settings.iterations, queued=queued[i], group=group) for i in (0, 1)]
            code = torch.stack([weights for weights, _ in plans])
            residual = torch.stack([transport.residual for _, transport in plans])
            self.queue.push(z[:2])
        loss = swapped_loss(scores, code, settings.temperature)
        # A measurement solves an eigenvalue problem: only for the steps that are logged.
        tensors = (loss.detach(), scores[:2].detach(), code, z[:2].detach(), residual)
        return loss, {"measured": lambda: measure(*tensors)}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW or LARS, without weight decay on norms, biases and prototypes, whose length is fixed."""
        settings = self.settings
        parts = groups(self, settings.weight_decay)
        decayed = [p for p in parts[0]["params"] if p is not self.prototypes.weight]
        parts = [{**parts[0], "params": decayed}, {**parts[1], "params": [*parts[1]["params"], self.prototypes.weight]}]
        if settings.optimizer == "lars":
            return LARS(parts, lr=settings.lr)
        return torch.optim.AdamW(parts, lr=settings.lr)

    def before_update(self, step: int) -> None:
        """Freeze the prototypes in the first steps."""
        if step < self.settings.freeze:
            self.prototypes.weight.grad = None

    def after_update(self, step: int) -> None:
        """Normalise the prototypes to unit length."""
        self._unit_prototypes()

    def extra_state(self) -> dict[str, Any]:
        """The queue, and the files that could not be read."""
        return {"queue": self.queue.state(), "broken": self.broken}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore both."""
        self.queue.load(state["queue"])
        self.broken = dict(state["broken"])

    @torch.no_grad()
    def _unit_prototypes(self) -> None:
        self.prototypes.weight.copy_(normalize(self.prototypes.weight, dim=-1))
