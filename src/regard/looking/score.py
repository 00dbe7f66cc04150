"""Which head finds objects: mass, pointing and divergence of every layer and head, with chance levels and intervals."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from regard._files import replacing
from regard.looking.layers import maps_by_head
from regard.looking.look import with_ending
from regard.looking.model import LookingModel
from regard.looking.regions import PictureWithRegion
from regard.pictures import read
from regard.vqa.attention_quality import AttentionQuality, quality_of
from regard.vqa.resampling import resampled_interval

SCORED = ("mass", "pointing", "divergence")  # divergence is lower for a better head
_SIDE = 224  # regions are measured at this many pixels a side at most


@dataclass(frozen=True)
class HeadScore:
    """One head: its mean over the pictures, the 95 % interval and the chance level of each measure."""

    layer: int
    name: str
    head: int
    mean: dict[str, float]
    interval: dict[str, tuple[float, float]]
    chance: dict[str, float]

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        row: dict[str, Any] = {"layer": self.layer, "head": self.head, "name": self.name}
        for measure in SCORED:
            low, high = self.interval[measure]
            row |= {measure: self.mean[measure], f"{measure} low": low, f"{measure} high": high}
            row[f"{measure} chance"] = self.chance[measure]
        return row


class Scores(list[HeadScore]):
    """The scores of all heads, in the order of the layers, means over so many `pictures`, under a `map`."""

    pictures = 0
    map = "model"  # its own

    @property
    def over(self) -> str:
        """What they are means over."""
        some = f"{self.pictures} picture" + ("s" if self.pictures != 1 else "")
        return some if self.map == "model" else f"{some}, with {self.map} in every attention"

    def text(self) -> str:
        """A table of text, the heads with the most mass in the regions first."""
        lines = [f"{'layer':>5}{'head':>5}" + "".join(f"{name + ' (95 %), chance':>36}" for name in SCORED)]
        for one in sorted(self, key=lambda one: -one.mean["mass"]):
            cells = [
                f"{one.mean[m]:.3f} ({one.interval[m][0]:.3f} to {one.interval[m][1]:.3f}), {one.chance[m]:.3f}"
                for m in SCORED
            ]
            lines.append(f"{one.layer:>5}{one.head:>5}" + "".join(f"{cell:>36}" for cell in cells))
        lines.append(f"Means over {self.over}. Chance: equal weights on all patches; less divergence is better.")
        lines.append(f"The best of {len(self)} heads is better than chance by luck alone: try it on others.")
        return "\n".join(lines)


def score(model: LookingModel, pairs: Sequence[PictureWithRegion], map: str | None = None) -> Scores:
    """How well every head of a model finds the regions of pictures; with `map`, under that map in every attention.

    Attention is what the class token or the last token of a prompt looks at, or the mean weight of each patch where
    there is neither; the share of tokens that are no patches is left out. Chance levels are those of equal weights on
    the same patches.
    """
    names: list[tuple[int, str, int]] = []
    measured: list[dict[str, Tensor]] = []
    chances: list[dict[str, Tensor]] = []
    for pair in pairs:
        with model.exchanged(map):
            seen, _ = model.run(read(pair.picture), rows=model.query)
        region = _resized(pair.region)[None]
        parts, levels, names = [], [], []
        for calls in seen.layers:
            maps = maps_by_head(calls)
            maps = maps / maps.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
            parts.append(_measures(quality_of(maps, None, region.expand(len(maps), -1, -1))))
            equal = torch.full_like(maps[:1], 1 / maps[0].numel())
            level = _measures(quality_of(equal, None, region))
            levels.append({name: x.expand(len(maps)) for name, x in level.items()})
            names += [(calls[0].layer, calls[0].name, head) for head in range(len(maps))]
        measured.append({name: torch.cat([part[name] for part in parts]) for name in SCORED})
        chances.append({name: torch.cat([part[name] for part in levels]) for name in SCORED})
    values = {m: torch.stack([x[m] for x in measured]).double().numpy() for m in SCORED}
    equal_values = {m: torch.stack([x[m] for x in chances]).double().numpy() for m in SCORED}
    pictures = [pair.name for pair in pairs]
    scores = Scores()
    scores.pictures, scores.map = len(pairs), map or "model"
    for place, (layer, name, head) in enumerate(names):
        columns = {m: values[m][:, place] for m in SCORED}
        scores.append(
            HeadScore(
                layer,
                name,
                head,
                {m: float(x.mean()) for m, x in columns.items()},
                {m: resampled_interval(x, pictures, highest=1.0) for m, x in columns.items()},
                {m: float(equal_values[m][:, place].mean()) for m in SCORED},
            )
        )
    return scores


def write_scores(scores: Scores, out: Path | str) -> list[Path]:
    """Write a plot of the mass of every head with its interval and chance level, and the table as JSON and CSV."""
    from matplotlib.figure import Figure

    out = with_ending(out)
    figure = Figure(figsize=(max(7.0, 0.18 * len(scores)), 6.5), layout="constrained")
    places = numpy.arange(len(scores))
    axes = figure.subplots(len(SCORED), sharex=True)
    for ax, measure in zip(axes, SCORED, strict=True):
        for place, one in enumerate(scores):
            if one.layer % 2:
                ax.axvspan(place - 0.5, place + 0.5, color="0.94", linewidth=0)
        means = numpy.array([one.mean[measure] for one in scores])
        ends = numpy.array([one.interval[measure] for one in scores]).T
        ax.errorbar(places, means, numpy.abs(ends - means), fmt="o", markersize=3, linewidth=1, label="head, 95 %")
        ax.step(
            places, [one.chance[measure] for one in scores], where="mid", linestyle=":", color="black", label="chance"
        )
        ax.set_ylabel(f"{measure} (less is better)" if measure == "divergence" else measure)
        ax.margins(x=0.01)
    axes[-1].set_xticks(places, [f"{one.layer}.{one.head}" for one in scores], rotation=90, fontsize=6)
    axes[-1].set_xlabel(f"layer.head; means over {scores.over}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=7)
    with replacing(out) as path:
        figure.savefig(path, dpi=100, format=out.suffix[1:])
    rows = [one.row() for one in scores]
    beside_json, beside_csv = out.with_suffix(".json"), out.with_suffix(".csv")
    with replacing(beside_json) as path:
        path.write_text(json.dumps({"pictures": scores.pictures, "map": scores.map, "rows": rows}, indent=1) + "\n")
    with replacing(beside_csv) as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return [out, beside_json, beside_csv]


def _measures(quality: AttentionQuality) -> dict[str, Tensor]:
    return {name: getattr(quality, name) for name in SCORED}


def _resized(region: Tensor) -> Tensor:
    """A mask by the nearest pixel, at most `_SIDE` pixels a side."""
    height, width = (min(side, _SIDE) for side in region.shape)
    rows, columns = (
        (torch.arange(n) * side // n).long() for n, side in zip((height, width), region.shape, strict=True)
    )
    return region[rows][:, columns]
