"""SwAV against lightly's parts: quality on digits, and the speed of a training step.

    python -m benchmarks.swav_peer digits                 # 3 seeds each, same backbone, crops, order, optimiser, steps
    python -m benchmarks.swav_peer same                   # losses from the same weights; their bias taken away, and not
    python -m benchmarks.swav_peer speed
    python -m benchmarks.swav_peer profile                # time of each part of our step; does not need lightly

lightly needs torchvision, whose usual build does not load with a CPU-only torch. Install both into a separate folder:

    pip install --no-deps --target /tmp/lightly lightly lightly-utils torchvision
    PYTHONPATH=/tmp/lightly python -m benchmarks.swav_peer digits

The operators that torchvision expects are declared here before lightly is imported; nothing calls them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from regard.pictures import Arrays
from regard.swav import Canvases, Swav, digits, evaluate_backbone, preset, views
from regard.swav._pretrain import build
from regard.training import FitSettings, Order, Running, cosine, fit, mix

RESULTS = Path(__file__).parent / "results"
DIGITS = {"steps": 500, "batch_size": 64}  # the preset of `regard pretrain`
PUBLISHED = {"batch_size": 64, "prototypes": 100, "eps": 0.05, "iterations": 3}  # lightly's defaults


def lightly():
    """lightly's loss, head, prototypes and transform."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    lightly.library = library  # declarations last as long as this object
    from lightly.loss import SwaVLoss
    from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes
    from lightly.transforms import SwaVTransform

    return SwaVLoss, SwaVProjectionHead, SwaVPrototypes, SwaVTransform


class Peer(Swav):
    """The same task with lightly's head, prototypes and loss; backbone, crops, order and optimiser are ours."""

    def __init__(self, backbone, settings):
        """Use lightly's parts in place of ours."""
        loss, head, prototypes, _ = lightly.parts
        super().__init__(backbone, settings)
        self.projection = head(backbone.dim, settings.hidden, settings.dim)
        self.prototypes = prototypes(settings.dim, settings.prototypes, settings.freeze)
        self.criterion = loss(settings.temperature, settings.iterations, settings.eps)
        self.step = 0

    def _unit_prototypes(self):
        """Nothing: lightly normalises them at the start of a step."""

    def loss(self, batch):
        """As in lightly's example."""
        settings = self.settings
        seed = mix(settings.seed, batch["epoch"])
        crops = views(batch["pictures"], batch["aspect"], batch["index"], settings.crops, seed)
        return self.lightly_loss([self.backbone.preparation.normalise(c) for c in crops]), {}

    def lightly_loss(self, crops):
        """The loss of views, one tensor per size."""
        self.prototypes.normalize()
        z = torch.cat([self.projection(self.backbone.pooled(c)) for c in crops])
        scores = self.prototypes(torch.nn.functional.normalize(z, dim=1), self.step)
        scores = scores.chunk(self.settings.crops.views)
        return self.criterion(list(scores[:2]), list(scores[2:])).squeeze(0)

    def optimizer(self):
        """AdamW, with no decay on norms, biases and prototypes."""
        prototypes = {id(p) for p in self.prototypes.parameters()}
        decayed = [p for p in self.parameters() if p.dim() > 1 and id(p) not in prototypes]
        others = [p for p in self.parameters() if p.dim() <= 1 or id(p) in prototypes]
        decay = self.settings.weight_decay
        return torch.optim.AdamW(
            [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}], self.settings.lr
        )

    def before_update(self, step):
        """lightly's prototypes take the step, to know whether they are frozen."""
        self.step = step + 1


def task_of(kind, settings):
    task = build(settings)
    if kind == "regard":
        return task
    torch.manual_seed(settings.seed)
    return Peer(task.backbone, settings)


def train(task, source, after_step=None):
    settings = task.settings
    with tempfile.TemporaryDirectory() as out:
        return fit(
            task,
            Canvases(source, settings.canvas or 32),
            FitSettings(settings.steps, settings.batch_size, settings.seed, cosine(settings.steps, settings.warmup)),
            out=out,
            running=Running(progress=False, log="none", checkpoint_every=settings.steps),
            after_step=after_step,
        )


def compare_digits():
    learn, test = digits()
    rows = []
    for seed in range(3):
        for kind in ("regard", "lightly"):
            task = task_of(kind, preset("digits", seed=seed, **DIGITS))
            fitted = train(task, learn)
            report = evaluate_backbone(task.backbone, learn, test, seed=seed)
            rows.append(
                {
                    "seed": seed,
                    "parts": kind,
                    "knn": report.knn.share,
                    "probe": report.probe.share,
                    "untrained_knn": report.untrained_knn.share,
                    "untrained_probe": report.untrained_probe.share,
                    "pixels_knn": report.pixels_knn.share,
                    "seconds": round(fitted.seconds, 1),
                }
            )
            print(rows[-1], flush=True)
    save("swav_digits", {"settings": DIGITS, "rows": rows})


def same(steps=100):
    """Losses on the same batches from the same initial weights; lightly's prototypes have a bias, once taken away."""
    torch.set_num_threads(1)
    learn, _ = digits()
    settings = preset("digits", **DIGITS)
    names = ("regard", "lightly without bias", "lightly")
    tasks = {name: task_of(name.split()[0], settings) for name in names}
    tasks[names[1]].prototypes.heads[0].bias = None
    with torch.no_grad():
        for part in ("backbone", "projection", "prototypes"):
            modules = [getattr(task, part) for task in tasks.values()]
            for weights in zip(*(module.parameters() for module in modules), strict=False):  # the bias is the last
                for other in weights[1:]:
                    other.copy_(weights[0])
    canvases, order = Canvases(learn, settings.canvas), Order(len(learn), settings.batch_size, settings.seed)
    factor = cosine(settings.steps, settings.warmup)
    optimizers = {kind: task.optimizer() for kind, task in tasks.items()}
    rows = []
    for number in range(steps):
        epoch, indices = order.at(number)
        losses = {}
        for kind, task in tasks.items():
            optimizer = optimizers[kind]
            loss, _ = task.loss(canvases.batch(indices, epoch))
            losses[kind] = float(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            task.before_update(number)
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * factor(number)
            optimizer.step()
            task.after_update(number)
        rows.append(losses)
        if number in (0, 1, 4, 9, 19, 49, 99):
            print(f"step {number + 1}:", ", ".join(f"{name} {losses[name]:.6f}" for name in names), flush=True)
    save("swav_same", {"settings": DIGITS, "losses": rows})


def step_of(task, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    task.after_update(0)


def speed(repeats=12):
    """Pictures per second of a whole step, from pictures in memory to updated weights, and of the views alone.

    Both sides have the same backbone, batch, views and optimiser.
    """
    from PIL import Image

    settings = preset("small", freeze=0, **PUBLISHED)
    crops = settings.crops
    source = Arrays(torch.randint(0, 256, (64, 3, 48, 48), dtype=torch.uint8))
    canvases = Canvases(source, 48)
    ours, theirs = task_of("regard", settings), task_of("lightly", settings)
    images = [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in source.pictures]
    transform = lightly.parts[3](
        crop_sizes=(crops.size, crops.local_size),
        crop_counts=(2, crops.local),
        crop_min_scales=(crops.scale[0], crops.local_scale[0]),
        crop_max_scales=(crops.scale[1], crops.local_scale[1]),
        hf_prob=crops.flip,
        cj_prob=crops.jitter_p,
        cj_strength=1.0,
        cj_bright=crops.jitter[0],
        cj_contrast=crops.jitter[1],
        cj_sat=crops.jitter[2],
        cj_hue=crops.jitter[3],
        random_gray_scale=crops.grey,
        gaussian_blur=crops.blur,
    )
    optimizers = ours.optimizer(), theirs.optimizer()

    def our_step():
        loss, _ = ours.loss(canvases.batch(list(range(64)), 0))
        step_of(ours, optimizers[0], loss)

    def their_step():
        crops_by_view = [torch.stack(column) for column in zip(*(transform(image) for image in images), strict=True)]
        loss = theirs.lightly_loss([torch.cat(crops_by_view[:2]), torch.cat(crops_by_view[2:])])
        step_of(theirs, optimizers[1], loss)

    def our_views():
        batch = canvases.batch(list(range(64)), 0)
        views(batch["pictures"], batch["aspect"], batch["index"], crops, 0)

    def their_views():
        [torch.stack(column) for column in zip(*(transform(image) for image in images), strict=True)]

    runs = {
        "step_regard": our_step,
        "step_lightly": their_step,
        "views_regard": our_views,
        "views_lightly": their_views,
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):  # interleaved, so that noise affects all of them
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    rates = {name: 64 / min(seconds) for name, seconds in times.items()}
    for name, value in rates.items():
        print(f"{name}: {value:.0f} samples/s", flush=True)
    rates["step_ratio"] = rates["step_regard"] / rates["step_lightly"]
    rates["views_ratio"] = rates["views_regard"] / rates["views_lightly"]
    print(f"step {rates['step_ratio']:.2f}x, views alone {rates['views_ratio']:.1f}x")
    save("swav_speed", {**rates, "threads": torch.get_num_threads()})


def profile():
    """Time and share of each part of a step, the mean of five steps."""
    settings = preset("small", **PUBLISHED)
    task = build(settings)
    source = Arrays(torch.randint(0, 256, (64, 3, 48, 48), dtype=torch.uint8))
    canvases, optimizer = Canvases(source, 48), task.optimizer()
    order = Order(64, 64, 0)
    spent: dict[str, float] = {}

    def timed(name, function):
        began = time.perf_counter()
        out = function()
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
        return out

    from regard.swav import codes, swapped_loss

    for number in range(6):
        if number == 1:
            spent.clear()
        epoch, indices = order.at(number)
        batch = timed("batch", lambda e=epoch, i=indices: canvases.batch(i, e))
        cut = timed("views", lambda b=batch: views(b["pictures"], b["aspect"], b["index"], settings.crops, 0))
        cut = timed("normalise", lambda c=cut: [task.backbone.preparation.normalise(v) for v in c])
        pooled = timed("backbone forward", lambda c=cut: [task.backbone.pooled(v) for v in c])
        z = timed(
            "head forward",
            lambda p=pooled: torch.nn.functional.normalize(torch.cat([task.projection(v) for v in p]), dim=-1),
        )
        scores = task.scores(z).view(settings.crops.views, 64, -1)
        code = timed("codes (Sinkhorn)", lambda s=scores: torch.stack([codes(s[i])[0] for i in (0, 1)]))
        loss = timed("loss", lambda s=scores, c=code: swapped_loss(s, c))
        timed("backward", loss.backward)
        timed("update", lambda: (optimizer.step(), optimizer.zero_grad(), task.after_update(0)))
    total = sum(spent.values())
    for name, seconds in spent.items():
        print(f"{name:<18}{1000 * seconds / 5:8.1f} ms {100 * seconds / total:5.1f} %")
    save("swav_profile", {name: seconds / 5 for name, seconds in spent.items()})


def save(name, content):
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "digits"
    if what != "profile":
        lightly.parts = lightly()
    {"digits": compare_digits, "same": same, "speed": speed, "profile": profile}[what]()
