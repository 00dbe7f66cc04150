"""Figure 2.1 of the thesis, the transformer, as a drawing: `python examples/thesis_transformer.py --out pictures/`."""

import argparse
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--out", type=Path, default=Path("out/pictures"), help="folder (default out/pictures)")
out = arguments.parse_args().out
out.mkdir(parents=True, exist_ok=True)

figure = Figure(figsize=(9.5, 5.4), layout="constrained")
transformer, heads, scaled = figure.subplots(1, 3, sharey=True, width_ratios=(3, 1, 1))
WIDTH, HEIGHT = 1.8, 0.62
SHADES = {"attention": "0.75", "add": "0.96", "feed": "0.87", "linear": "0.87", "softmax": "0.87"}


def arrow(ax, *corners):
    """A line through the corners with an arrow at its end."""
    for start, end in pairwise(corners[:-1]):
        ax.plot(*zip(start, end, strict=True), color="0.3", linewidth=0.9)
    ax.add_patch(FancyArrowPatch(*corners[-2:], arrowstyle="-|>", mutation_scale=8, color="0.3", shrinkA=0, shrinkB=0))


def column(ax, x, inputs, boxes, outputs=""):
    """Boxes above each other with arrows upwards, the inputs below and the outputs above; the heights of all."""
    labels = [inputs, *boxes, *filter(None, [outputs])]
    middles = [1.05 * k for k in range(len(labels))]
    for k, (label, y) in enumerate(zip(labels, middles, strict=True)):
        if label in boxes:
            shade = next((s for word, s in SHADES.items() if word in label.lower()), "1")
            ax.add_patch(Rectangle((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, facecolor=shade, edgecolor="0.3"))
        ax.text(x, y, label, ha="center", va="center", fontsize=7)
        if k:
            arrow(ax, (x, middles[k - 1] + HEIGHT / 2), (x, y - HEIGHT / 2))
    return middles


def layers(ax, x, middles, blocks, side, label):
    """A frame around the layers that are repeated, and the connections around their blocks."""
    edge, low, high = x + side * (WIDTH / 2 + 0.25), middles[blocks[0]] - 0.5, middles[blocks[-1] + 1] + 0.4
    for block in blocks:
        below, above = middles[block] - 0.42, middles[block + 1]
        arrow(ax, (x, below), (edge, below), (edge, above), (x + side * WIDTH / 2, above))
    left = x - WIDTH / 2 - 0.45
    ax.add_patch(Rectangle((left, low), WIDTH + 0.9, high - low, fill=False, edgecolor="0.5", linestyle="--"))
    beside = x + side * (WIDTH / 2 + 0.62)
    ax.text(beside, (low + high) / 2, label, rotation=90, ha="center", va="center", fontsize=7)


start, feed, again = ["Embedding, position"], ["Feed-forward\nlayers", "Add and norm"], "Multi-head\nattention"
encoder = column(transformer, 0, "inputs", [*start, again, "Add and norm", *feed])
masked = ["Masked multi-head\nattention", "Add and norm", again, "Add and norm"]
decoder = column(transformer, 3.6, "outputs so far", [*start, *masked, *feed, "Linear", "Softmax"], "probabilities")
layers(transformer, 0, encoder, (2, 4), -1, "encoder, 6 times")
layers(transformer, 3.6, decoder, (2, 4, 6), 1, "decoder, 6 times")
arrow(transformer, (0, encoder[5] + 0.31), (0, 6.3), (1.8, 6.3), (1.8, decoder[4]), (3.6 - WIDTH / 2, decoder[4]))
transformer.text(1.74, decoder[4] + 1.2, "keys,\nvalues", ha="right", fontsize=6.5)
split = ["Linear, one for each\nof Q, K, V and head", "Scaled dot-product\nattention, h heads", "Concatenate", "Linear"]
column(heads, 0, "Q, K, V", split, "output")
steps = ["Product Q K'", "Scale by 1 / sqrt(d)", "Mask (optional)", "Softmax", "Product with V"]
column(scaled, 0, "Q, K", steps, "output")
titles = {transformer: "the transformer", heads: "multi-head attention", scaled: "scaled dot product"}
limits = {transformer: (-1.7, 5.3), heads: (-1.1, 1.1), scaled: (-1.1, 1.1)}
for ax, title in titles.items():
    ax.set_title(title, fontsize=9)
    ax.set_xlim(limits[ax])
    ax.set_axis_off()
    ax.set_ylim(-0.6, decoder[-1] + 0.4)
figure.savefig(out / "thesis-2-1.png", dpi=90)
