"""Training that resumes bit for bit after a kill: what pretraining and question answering share.

A `Task` is a module with a loss and an optimiser; `fit` runs it on Lightning Fabric. Data has a length and a method
`batch(indices, epoch)` that returns what the loss takes:

    class Mine(Task):
        config = {"kind": "mine"}
        def loss(self, batch): ...; return loss, {"accuracy": 0.5}
        def optimizer(self): return torch.optim.AdamW(groups(self, weight_decay=0.05), lr=1e-3)

    class Data:
        def __len__(self): return 1000
        def batch(self, indices, epoch): return {"x": self.x[indices]}

    settings = FitSettings(steps=500, batch_size=64, schedule=cosine(500, warmup=50))
    fit(Mine(), Data(), settings, out="out/mine", running=Running(devices=2, strategy="ddp"))

All random numbers are functions of (seed, step): the order of the samples is `Order`'s, torch is seeded before every
batch (dropout), and `batch` draws with `uniform(seed, index, ...)` or a generator seeded by
`mix(seed, epoch, index)`. So `fit` with the same `out` resumes bit for bit, in the middle of an epoch too, with any
number of loader workers. Ctrl-c and SIGTERM write a checkpoint after the current step. `batch_size` counts the samples
of one forward pass over all processes: the same command on 1 or 8 devices takes the same steps. A checkpoint folder
(`latest(out)`) holds model.safetensors, state.pt, config.json.
"""

from typing import TYPE_CHECKING

from regard._lazy import lazily

if TYPE_CHECKING:
    from regard.training._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
