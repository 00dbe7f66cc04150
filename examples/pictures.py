"""Every kind of picture that regard draws: `python examples/pictures.py --out pictures/`."""

import argparse
from importlib.resources import files
from pathlib import Path

import torch

from regard import continuous as C
from regard import entmax, pictures, show, sinkhorn, softmax, sparsemax, tvmax

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--out", type=Path, default=Path("out/pictures"), help="folder (default out/pictures)")
out = arguments.parse_args().out
out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)

# Scores: how similar the colour of each cell of the photograph is to that of the cat's eye.
image = pictures.read((files("regard") / "assets" / "cat.jpg").read_bytes())
rows, columns = 14, 21
colours = torch.nn.functional.adaptive_avg_pool2d(image.float() / 255, (rows, columns)).flatten(1).T
scores = (3 - 60 * (colours - colours[5 * columns + 7]).square().sum(-1)).clamp_min(-4)
weights, cells = sparsemax(scores), C.grid(rows, columns)
regions = tvmax(scores.view(rows, columns), 0.1)
eyes, sparse_eyes = (C.fit_mixture(weights, cells, 2, 20, "random", restarts=8, alpha=a) for a in (1, 2))

show.grid(image, sparsemax(scores).view(rows, columns)).savefig(out / "grid.png", dpi=90)
show.density(image, sparse_eyes).savefig(out / "density.png", dpi=90)
attentions = {
    "softmax": softmax(scores).view(rows, columns),
    "sparsemax": sparsemax(scores).view(rows, columns),
    "TVmax": regions,
    "continuous softmax": C.match_moments(weights, cells, 1),
    "continuous sparsemax": C.match_moments(weights, cells, 2),
    "2 components": eyes,
    "2 sparse components": sparse_eyes,
}
show.compare(image, attentions).savefig(out / "compare.png", dpi=90)

words = ["what", "colour", "is", "the", "cat", "on", "the", "left"]
s = torch.randn(len(words))
maps = {"softmax": softmax(s), "entmax 1.5": entmax(s), "sparsemax": sparsemax(s)}
show.weights_1d(maps, words, C.match_moments(softmax(s), C.line(len(words)))).savefig(out / "words.png", dpi=90)

x, y = torch.rand(14, 2), torch.rand(14, 2) * 0.7 + torch.tensor([0.8, 0.1])
plan = sinkhorn(-torch.cdist(x, y).square(), eps=0.01, tol=1e-3)
show.transport(plan, x, y).savefig(out / "points.png", dpi=90)
show.transport(plan).savefig(out / "plan.png", dpi=90)

crops = torch.nn.functional.unfold(image[None].float(), 48, stride=16)[0].T.reshape(-1, 3, 48, 48).byte()
small = torch.nn.functional.adaptive_avg_pool2d(crops.float() / 255, 2).flatten(1)
features = torch.nn.functional.normalize(small - small.mean(0), dim=1)
centres = features[torch.randperm(len(features))[:5]]
show.prototypes(crops, features @ centres.T).savefig(out / "prototypes.png", dpi=90)
print(*sorted(path.name for path in out.glob("*.png")))
