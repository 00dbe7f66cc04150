"""What a model looks at in one picture, layer by layer and head by head: pictures on one scale, a table, files."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from regard._files import replacing
from regard._problem import Problem
from regard.affinity import Dot
from regard.attention.summaries import summarize
from regard.hf import Recording
from regard.looking.layers import maps_by_head, table_rows
from regard.looking.model import LookingModel
from regard.maps.spelling import as_map
from regard.patches.photograph import describe_patches, patch_grid

ENDINGS = (".png", ".pdf", ".svg", ".jpg")
PATCH_MAPS = ("softmax", "entmax-1.5", "sparsemax")
ROLLED = "all layers"  # the title of a rollout


def with_ending(out: Path | str) -> Path:
    """Where a picture is written: a path without an ending gets .png; one that is no picture's is an error.

    >>> with_ending("out/look").name
    'look.png'
    """
    out = Path(out).resolve()
    if not out.suffix:
        return out.with_suffix(".png")
    if out.suffix.lower() not in ENDINGS:
        raise Problem(f"--out {out.name}: a picture ends in one of {', '.join(ENDINGS)}; JSON and CSV lie beside it.")
    return out


@dataclass(frozen=True)
class Look:
    """What was looked at: panels (h, w) by row and title, which sum to at most one; a table; the likeliest classes."""

    picture: Tensor  # (3, H, W)
    panels: dict[str, dict[str, Tensor]]
    table: list[dict[str, Any]]
    equal: tuple[float, ...]  # the weight of a patch, if all keys had equal weights, in each layer
    answers: dict[str, dict[str, float]] = field(default_factory=dict)  # by map

    def write(self, out: Path | str) -> list[Path]:
        """Write the picture to `out`, such as look.png, and the table beside it as JSON and CSV; the paths."""
        out = with_ending(out)
        self.draw(out)
        return [out, *_write_table(out, self.table, self.answers)]

    def draw(self, out: Path) -> None:
        """Draw all panels on one scale; the rollout, which is far flatter than a head, on its own."""
        from matplotlib.figure import Figure

        from regard.show import grid
        from regard.show._canvas import colour_bar, scale

        columns = max(len(row) for row in self.panels.values())
        shared = [x for row in self.panels.values() for title, x in row.items() if title != ROLLED]
        brightest = max(float(x.max()) for x in shared)
        shape = min(2.0, max(0.5, self.picture.shape[-2] / self.picture.shape[-1]))
        wide = 3.0 if columns < 4 else 1.5
        high = (wide * shape + 0.25) * len(self.panels) + 0.4
        figure = Figure(figsize=(wide * columns + 1, max(2.5, high)), layout="constrained")
        axes = figure.subplots(len(self.panels), columns, squeeze=False)
        for line, (name, row) in zip(axes, self.panels.items(), strict=True):
            for ax in line[len(row) :]:
                ax.set_axis_off()
            for ax, (title, weights) in zip(line, row.items(), strict=False):
                own = float(weights.max()) if title == ROLLED else None
                grid(self.picture, weights, ax, vmax=own or brightest, bar=False)
                scaled = "" if own is None else f", its own scale to {own:.2g}"
                ax.set_title(f"{name}, {title}{scaled}", fontsize=7, loc="center" if own is None else "left")
        equal = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (min(self.equal), max(self.equal))))
        label = f"weight, one scale for all;\nequal weights {equal}"
        colour_bar(figure, scale(brightest), label, ax=axes, shrink=min(1.0, 3 / len(self.panels)))
        with replacing(out) as path:
            figure.savefig(path, dpi=100, format=out.suffix[1:])


def write_looks(looks: dict[str, Look], out: Path | str) -> list[Path]:
    """Write what was looked at in several pictures; the paths.

    `looks`: by the name of the picture.
    `out`: look.png becomes look-NAME.png for each picture, and one table of all, look.json and look.csv.
    """
    out = with_ending(out)
    drawn = [out.with_stem(f"{out.stem}-{Path(name).stem}") for name in looks]
    if len(set(drawn)) < len(drawn):
        raise Problem("two pictures have the same name, whatever their endings: look at them one by one.")
    for path, one in zip(drawn, looks.values(), strict=True):
        one.draw(path)
    table = [{"picture": name, **row} for name, one in looks.items() for row in one.table]
    return [*drawn, *_write_table(out, table, {name: one.answers for name, one in looks.items()})]


def _write_table(out: Path, table: list[dict[str, Any]], answers: dict[str, Any]) -> list[Path]:
    beside_json, beside_csv = out.with_suffix(".json"), out.with_suffix(".csv")
    with replacing(beside_json) as path:
        path.write_text(json.dumps({"rows": table, "answers": answers}, indent=1) + "\n")
    with replacing(beside_csv) as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return [beside_json, beside_csv]


def look(model: LookingModel, picture: Tensor, map: str | None = None) -> Look:
    """What every layer and head looks at in a picture (3, H, W) in bytes, the means, and the rollout if there is one.

    Where the model has a class token it is what that token looks at; of a model with a prompt, its last token, which
    makes the first word of the answer; elsewhere the mean weight that a patch receives. With `map`, a name such as
    "entmax-1.5", the model is run a second time with that map in every attention.
    """
    seen, answers = model.run(picture, rows=model.query, keep=True)
    panels = _panels("", seen, model)
    table, all_answers = _table("model", seen, model), {"model": answers}
    if map is not None:
        with model.exchanged(map):
            seen, all_answers[map] = model.run(picture, rows=model.query, keep=True)
        panels |= _panels(f"{map}: ", seen, model)
        table += _table(map, seen, model)
    named = {name: one for name, one in all_answers.items() if one}
    patches = [maps_by_head(calls)[0].numel() for calls in seen.layers]
    shares = {row["layer"]: row["on patches of equal weights"] for row in table}
    equal = tuple(share / count for share, count in zip(shares.values(), patches, strict=True))
    return Look(picture, panels, table, equal, named)


def look_at_patches(picture: Tensor) -> Look:
    """What the patches of a picture (3, H, W) in bytes look at by their colours alone, under several maps.

    Each panel has the mean weight that a patch receives from all patches.
    """
    grid = patch_grid(picture.shape[-2], picture.shape[-1])
    features = describe_patches(picture.float() / 255, grid)
    panels: dict[str, Tensor] = {}
    table: list[dict[str, Any]] = []
    for name in PATCH_MAPS:
        summary: Any = summarize(features, features, Dot(1.0), as_map(name))
        panels[name] = summary.received.reshape(grid) / len(features)
        row = {"map": name, "layer": 0, "name": "patches", "head": 0, "of": len(features)}
        row |= {"entropy": float(summary.entropy.mean()), "support": float(summary.support.float().mean())}
        row |= {"effective": float(summary.effective.mean()), "entropy of equal weights": math.log(len(features))}
        table.append(row | {"on patches": 1.0, "on patches of equal weights": 1.0})
    return Look(picture, {"all patches": panels}, table, (1 / len(features),))


def _panels(before: str, seen: Recording, model: LookingModel) -> dict[str, dict[str, Tensor]]:
    if seen[0].tokens.grid is None:
        raise Problem("no attention of this model sees patches of a picture: there is nothing to draw.")
    panels: dict[str, dict[str, Tensor]] = {}
    for calls in seen.layers:
        heads = maps_by_head(calls)
        row = {f"head {head}": x for head, x in enumerate(heads)}
        panels[f"{before}layer {calls[0].layer}"] = row | {"mean": heads.mean(0)}
    first = seen[0].tokens
    rows = first.places(model.query) if isinstance(model.query, str) else [first.length + row for row in model.query]
    if rows and all(one.tokens.windows is None for one in seen):
        panels[f"{before}rollout"] = {ROLLED: seen[0].pictures(seen.rollout(rows))[0, 0]}
    return panels


def _table(name: str, seen: Recording, model: LookingModel) -> list[dict[str, Any]]:
    return [{"map": name, **row} for row in table_rows(seen, model.query)]
