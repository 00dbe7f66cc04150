"""A task small enough for tests, with everything that a resumed run could lose: momentum, dropout, noise, state.

As a script: tiny_task.py OUT STEPS [seconds that a checkpoint takes to write].
"""

import sys
import time
from dataclasses import fields

import torch
from torch import nn

from regard.training import LARS, FitSettings, Running, Task, cosine, fit, groups, uniform


class Tiny(Task):
    def __init__(self, width=8, optimizer="adamw"):
        super().__init__()
        self.config = {"kind": "tiny", "width": width}
        self.net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))
        self.kind = optimizer
        self.seen = torch.zeros(())

    def loss(self, batch):
        x, noise = batch
        self.seen = self.seen + x.sum()
        loss = (self.net(x + noise) - x.sum(-1, keepdim=True)).square().mean()
        return loss, {"twice": 2 * loss.detach()}

    def optimizer(self):
        if self.kind == "lars":
            return LARS(groups(self, 1e-4), lr=0.5)
        return torch.optim.AdamW(groups(self, 1e-2), lr=1e-2)

    def extra_state(self):
        return {"seen": self.seen}

    def load_extra_state(self, state):
        self.seen = state["seen"]


class Data:
    def __init__(self, length=40):
        self.x = torch.randn(length, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def batch(self, indices, epoch):
        return self.x[indices], uniform(epoch, torch.tensor(indices), 4)


def run(out, steps=23, task=None, **options):
    torch.manual_seed(0)
    task = task or Tiny()
    options = {"checkpoint_every": 4, "progress": False, "batch_size": 8, "schedule": cosine(steps, 5)} | options
    options["steps"] = steps
    settings, running = (
        kind(**{f.name: options.pop(f.name) for f in fields(kind) if f.name in options})
        for kind in (FitSettings, Running)
    )
    return task, fit(task, Data(), settings, out=out, running=running, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 3:
        from regard.training import _checkpoints

        sync = _checkpoints._sync

        def slow(path):
            time.sleep(float(sys.argv[3]))
            sync(path)

        _checkpoints._sync = slow
    run(sys.argv[1], int(sys.argv[2]), after_step=lambda step: time.sleep(0.02))
