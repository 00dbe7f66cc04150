"""Faithfulness by intervention: does the answer change when what the attention points at is hidden?

Cells are hidden in the order of a ranking, the highest first (*deletion*), or all cells but the highest (*insertion*),
and the score of the answer that the model gives to the whole picture is followed. A ranking that shows what the answer
rests on has a low area under the first curve and a high one under the second, compared with rankings that know nothing
of the model's attention: random, from the centre outwards, and gradient x input; and with the attention traced back
through self-attention to where the information came from (`regard.vqa.tracing`).

Legend: B questions, L cells, S steps, M ways to hide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy
import torch
from torch import Tensor

from regard import _check
from regard.training import generator
from regard.training._progress import duration
from regard.training._together import Together
from regard.vqa.blind import centred_blob
from regard.vqa.examples import Examples
from regard.vqa.hiding import Hiding
from regard.vqa.kinds import Kind, parse
from regard.vqa.mcan import MCAN, MixingLayer
from regard.vqa.output import Looked
from regard.vqa.resampling import resampled_interval
from regard.vqa.tracing import trace

ATTENTION, RANDOM, CENTRE, GRADIENT, TRACED = "attention", "random", "centre", "gradient x input", "traced"
BASELINES = (RANDOM, CENTRE, GRADIENT, TRACED)
RANKINGS = (ATTENTION, *BASELINES)
CURVES = ("deletion", "insertion")
CURVE_STEPS = 8  # from the whole picture to nothing
_SEED = 24  # of the random ranking, and of the order of cells that are equally high


class MeanInterval(NamedTuple):
    """A mean over questions, and its 95 % interval from drawing pictures again."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Faithfulness:
    """What hiding cells did to the answers of one kind of output attention.

    attention   the kind, by name
    questions   that were measured
    hidden      where cells were hidden, and what took their place, in words
    shares      of the cells, at each point of the curves, (S + 1)
    curves      "deletion" and "insertion", by ranking: the mean score at each share
    areas       the area under each, with an interval: lower is better for deletion, higher for insertion
    gains       by curve and baseline: the area of the attention less that of the baseline, question by question
    """

    attention: str
    questions: int
    hidden: str
    shares: tuple[float, ...]
    curves: dict[str, dict[str, tuple[float, ...]]]
    areas: dict[str, dict[str, MeanInterval]]
    gains: dict[str, dict[str, MeanInterval]]

    def better(self, curve: str, baseline: str) -> bool | None:
        """Whether the attention is better than a baseline; None if the interval of the difference has zero in it."""
        _check.choice("curve", curve, CURVES)
        gain = self.gains[curve][baseline]
        if gain.low <= 0 <= gain.high:
            return None
        return (gain.mean < 0) == (curve == "deletion")

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "attention": self.attention,
            "questions": self.questions,
            "hidden": self.hidden,
            "shares": list(self.shares),
            "curves": {c: {r: list(values) for r, values in rows.items()} for c, rows in self.curves.items()},
            "areas": {c: {r: list(values) for r, values in rows.items()} for c, rows in self.areas.items()},
            "gains": {c: {r: list(values) for r, values in rows.items()} for c, rows in self.gains.items()},
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; a ValueError, KeyError or TypeError if it is something else."""

        def estimates(name: str, rankings: Sequence[str]) -> dict[str, dict[str, MeanInterval]]:
            return {c: {r: MeanInterval(*map(float, written[name][c][r])) for r in rankings} for c in CURVES}

        shares = tuple(map(float, written["shares"]))
        curves = {c: {r: tuple(map(float, written["curves"][c][r])) for r in RANKINGS} for c in CURVES}
        if any(len(values) != len(shares) for rows in curves.values() for values in rows.values()):
            raise ValueError(f"curves of {len(shares)} points were expected")
        areas, gains = estimates("areas", RANKINGS), estimates("gains", BASELINES)
        said = (str(written["attention"]), int(written["questions"]), str(written["hidden"]))
        return cls(*said, shares, curves, areas, gains)


def cell_order(importance: Tensor, ties: Tensor) -> Tensor:
    """The cells (B, L) from the highest importance (B, L) to the lowest; equal ones by `ties`, (B, L) or (L,).

    >>> cell_order(torch.tensor([[0.0, 0.5, 0.0, 0.5]]), torch.tensor([3.0, 1.0, 2.0, 4.0]))
    tensor([[3, 1, 0, 2]])
    """
    first = ties.expand_as(importance).argsort(dim=-1, descending=True, stable=True)
    return first.gather(-1, importance.gather(-1, first).argsort(dim=-1, descending=True, stable=True))


def kept_cells(order: Tensor, steps: int = CURVE_STEPS) -> tuple[Tensor, Tensor]:
    """Masks of the cells that are kept at each step of deletion and of insertion, each (B, steps + 1, L).

    At step i of deletion the first i L / steps cells of the order (B, L), rounded, are hidden; at step i of insertion
    all others.

    >>> deletion, insertion = kept_cells(torch.tensor([[2, 0, 1, 3]]), steps=2)
    >>> deletion.int().tolist(), insertion.int().tolist()
    ([[[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]]], [[[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]])
    """
    _check.count("steps", steps)
    cells = order.shape[-1]
    rank = order.argsort(-1)  # of each cell, 0 for the first
    counts = torch.tensor([(2 * i * cells + steps) // (2 * steps) for i in range(steps + 1)], device=order.device)
    insertion = rank.unsqueeze(-2) < counts.unsqueeze(-1)
    return ~insertion, insertion


def area_under(scores: Tensor, steps: int = CURVE_STEPS) -> Tensor:
    """The area under curves (..., steps + 1) over the shares from 0 to 1, by trapezoids.

    >>> area_under(torch.tensor([1.0, 0.5, 0.0]), steps=2)
    tensor(0.5000, dtype=torch.float64)
    """
    values = scores.double()
    return (values.sum(-1) - (values[..., 0] + values[..., -1]) / 2) / steps


def attention_on_cells(looked: Looked, cells: tuple[int, int]) -> Tensor:
    """The attention that is shown, on each cell (B, L): the weights, or the density at the middles of the cells."""
    if looked.density is None:
        return looked.weights.detach().float()
    with torch.no_grad():
        return looked.density.pdf_on_grid(*cells).float().reshape(len(looked.weights), -1)


def measure_faithfulness(
    model: MCAN,
    examples: Examples,
    hide: Hiding,
    kinds: Sequence[str | Kind],
    *,
    questions: int = 100,
    steps: int = CURVE_STEPS,
    progress: Callable[[str], None] | None = None,
    group: Together | None = None,
) -> dict[str, Faithfulness]:
    """Hide cells of the pictures of some questions, and follow the answers, for several kinds of output attention.

    Each kind is followed in the answer that it gives itself, right or wrong. The gradient is that of the answer's
    score before the sigmoid or softmax, at the features of the cells, times their difference from the features of a
    picture of which all is hidden. A picture takes 4 (steps - 1) + 2 passes of the backbone, and 4 (steps - 1) more for
    each question and kind.

    `model`: not changed.
    `examples`: questions with features.
    `hide`: how cells are hidden.
    `kinds`: kinds of output attention, by name or value.
    `questions`: at most so many, spread evenly over the examples; default 100.
    `steps`: of the curves; default 8.
    `progress`: called with a line that says how long it takes, once the first picture is done; default None.
    `group`: processes that share the pictures, and all return the whole; default None, this one alone.
    """
    parsed = list(dict.fromkeys(map(parse, kinds)))
    chosen = range(0, len(examples), max(1, len(examples) // _check.count("questions", questions)))[:questions]
    by_picture: dict[str, list[int]] = {}
    for i in chosen:
        by_picture.setdefault(examples.questions[i].picture, []).append(i)
    group = group or Together()
    followed: list[list[Tensor]] = []  # for each picture of this process: its questions, each with all kinds
    training = model.training
    model.eval()
    start = time.monotonic()
    try:
        for number, (picture, indices) in enumerate(group.shares(by_picture.items())):
            seen = _Hidden(model, hide, picture, steps)
            followed.append([seen.scores(examples.words[i], kind) for i in indices for kind in parsed])
            if progress and number == 0:
                asked = f"{len(chosen)} questions about {len(by_picture)} pictures"
                seconds = (time.monotonic() - start) / len(indices) * len(chosen) / group.size
                progress(f"hiding cells {hide.about}: {asked}, {len(parsed)} attentions: about {duration(seconds)}")
    finally:
        model.train(training)
    names = [picture for picture, indices in by_picture.items() for _ in indices]
    found = [scores for one in group.interleave(followed, len(by_picture)) for scores in one]
    return {
        str(kind): _summary(str(kind), torch.stack(found[number :: len(parsed)]), names, hide.about, steps)
        for number, kind in enumerate(parsed)
    }


class _Hidden:
    """One picture with cells hidden by the rankings that know no question, and by those that do."""

    def __init__(self, model: MCAN, hide: Hiding, picture: str, steps: int) -> None:
        self.model, self.hide, self.picture, self.steps = model, hide, picture, steps
        self.device = next(model.parameters()).device
        cells = model.cells[0] * model.cells[1]
        self.ties = torch.rand(cells, generator=generator(_SEED, *map(ord, picture)))
        middle = centred_blob(*model.cells).flatten()
        ends = torch.tensor([True, False]).unsqueeze(-1).expand(2, cells)
        blind = torch.stack([self.ties, middle])
        masks = torch.cat([ends, self._inner(blind)])
        features = self._features(masks)
        self.whole, self.nothing, self.blind = features[:1], features[1:2], features[2:]

    def scores(self, words: Tensor, kind: Kind) -> Tensor:
        """The score of the answer, (rankings, 2 curves, steps + 1), in the order of `RANKINGS` and `CURVES`."""
        words = words.to(self.device)
        asked = self.whole.clone().requires_grad_()
        with torch.enable_grad():
            visited: list[MixingLayer] = []
            scores, looked = self.model(asked, words[None], attention=kind, visited=visited)
            answer = int(scores[0].argmax())
            (slope,) = torch.autograd.grad(scores[0, answer], asked)
        by_gradient = (slope * (self.whole - self.nothing)).sum(-1).flatten().cpu()
        shown = attention_on_cells(looked, self.model.cells)[0].cpu()
        traced = trace(self.model, looked, visited)
        own = torch.stack([shown, by_gradient, shown if traced is None else traced.shares[0].float().cpu()])
        attended, *others = self._features(self._inner(own)).chunk(3)
        features = torch.cat([self.whole, self.nothing, attended, self.blind, *others])
        with torch.no_grad():
            said = self.model(features, words.expand(len(features), -1), attention=kind).scores
        said = self.model.probabilities(said)[:, answer].double().cpu()
        inner = said[2:].reshape(len(RANKINGS), 2, self.steps - 1)
        whole, nothing = (x.expand(len(RANKINGS), 1) for x in said[:2])
        deletion = torch.cat([whole, inner[:, 0], nothing], -1)
        insertion = torch.cat([nothing, inner[:, 1], whole], -1)
        return torch.stack([deletion, insertion], 1)

    def _inner(self, importance: Tensor) -> Tensor:
        """The masks of all steps but the ends, of both curves, for rankings (R, L): (R 2 (steps - 1), L)."""
        masks = torch.stack(kept_cells(cell_order(importance, self.ties), self.steps), 1)
        return masks[:, :, 1:-1].flatten(0, 2)

    def _features(self, kept: Tensor) -> Tensor:
        return self.hide(self.picture, kept.reshape(-1, *self.model.cells)).to(self.device)


def _summary(kind: str, scores: Tensor, pictures: Sequence[str], hidden: str, steps: int) -> Faithfulness:
    """The summary of scores (B, rankings, 2, steps + 1)."""
    areas = area_under(scores, steps).numpy()
    means = scores.mean(0)

    def estimate(values: Any, lowest: float) -> MeanInterval:
        if not values.any():  # two orders that are the same, or a score that is zero whatever is hidden
            return MeanInterval(0.0, 0.0, 0.0)
        interval = resampled_interval(numpy.asarray(values), pictures, lowest=lowest, highest=1.0)
        return MeanInterval(float(values.mean()), *interval)

    by_curve: dict[str, dict[str, MeanInterval]] = {}
    gains: dict[str, dict[str, MeanInterval]] = {}
    for c, curve in enumerate(CURVES):
        by_curve[curve] = {name: estimate(areas[:, r, c], 0.0) for r, name in enumerate(RANKINGS)}
        gains[curve] = {
            name: estimate(areas[:, 0, c] - areas[:, r, c], -1.0)
            for r, name in enumerate(RANKINGS)
            if name != ATTENTION
        }
    return Faithfulness(
        kind,
        len(scores),
        hidden,
        tuple(i / steps for i in range(steps + 1)),
        {c: {r: tuple(means[i, j].tolist()) for i, r in enumerate(RANKINGS)} for j, c in enumerate(CURVES)},
        by_curve,
        gains,
    )
