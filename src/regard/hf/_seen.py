"""What `watch` has recorded: one entry for each call of an attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.attention.flow import FlowBounds, flow
from regard.attention.lazy import LazyWeights
from regard.attention.rollout import rollout
from regard.attention.summaries import AttentionSummary
from regard.hf._tokens import Tokens


@dataclass(frozen=True, eq=False, repr=False)
class Seen:
    """One call of an attention of a watched model.

    `name`: of the module in the model.
    `layer`: its number among the watched attentions, from 0.
    `summary`: of its weights (B, H, Lq, Lk); windows of a picture are in the batch.
    `all_tokens`: of its keys: one for the whole batch, or one for each of its samples, where they differ.
    `weights`: if they were kept: what makes them, or they themselves (B, H, Lq, Lk) where the model has formed them.

    >>> summary = AttentionSummary(received=torch.ones(1, 2, 5))
    >>> Seen("encoder.0", 0, summary, (Tokens.picture((2, 2), prefix=1),)).pictures().shape
    torch.Size([1, 2, 2, 2])
    """

    name: str
    layer: int
    summary: AttentionSummary
    all_tokens: tuple[Tokens, ...]
    weights: LazyWeights | Tensor | None = None

    @property
    def tokens(self) -> Tokens:
        """The tokens of the keys, of the first sample where samples differ."""
        return self.all_tokens[0]

    def pictures(self, x: Tensor | None = None, sample: int | None = None) -> Tensor:
        """Values of keys (B, ..., Lk) on the grid of patches, (B, ..., h, w), with other tokens dropped.

        `x`: default the mass that each key receives, divided by the number of queries, of all windows: its mean weight.
        `sample`: one of the batch, whose picture (..., h, w) is wanted: necessary where samples differ; default None.
        """
        if x is None:
            if self.summary.received is None:
                _check.complain("x", "None", 'values of keys, or "received" among the summaries', "Want it.")
            windows = 1 if self.tokens.windows is None else self.tokens.windows.count
            x = self.summary.received / max(1, self.queries * windows)
        if sample is None:
            if len(set(self.all_tokens)) > 1:
                _check.complain("sample", "None", "one of the samples, whose tokens differ", "Pass its number.")
            return self.tokens.pictures(x)
        if self.tokens.windows is not None:
            return self.tokens.pictures(x)[sample]
        return self.all_tokens[sample if len(self.all_tokens) > 1 else 0].pictures(x[sample])

    @property
    def queries(self) -> int:
        """The number of queries, Lq."""
        for x in (self.summary.entropy, self.summary.support):
            if x is not None:
                return x.shape[-1]
        for x in (self.summary.top_weights, self.summary.regions):
            if x is not None:
                return x.shape[-2]
        return self.tokens.length

    def __repr__(self) -> str:
        return shown(self, {"name": self.name, "layer": self.layer, "summary": self.summary})


class Recording(list[Seen]):
    """Everything that was seen in a block of `watch`, in the order of the calls: a list of `Seen`.

    >>> Recording([]).layers
    []
    """

    @property
    def layers(self) -> list[list[Seen]]:
        """The calls of each attention: several, if the model ran several times, or generated several words."""
        numbers = sorted({seen.layer for seen in self})
        return [[seen for seen in self if seen.layer == number] for number in numbers]

    def rollout(self, rows: Sequence[int] | Tensor, *, residual: float = 0.5) -> Tensor:
        """The share of each input token in some output tokens, (B, R, L), as `regard.rollout`, over all calls.

        The model was watched with `keep=True`, and ran once.
        """
        with torch.no_grad():
            return rollout(self._kept(), rows, residual=residual)

    def flow(self, rows: Sequence[int] | Tensor, sinks: Sequence[int] | Tensor, *, residual: float = 0.5) -> FlowBounds:
        """Bounds of the flow from output tokens to input tokens, (B, R, K), as `regard.flow`; see `rollout`."""
        return flow(self._kept(), rows, sinks, residual=residual)

    def _kept(self) -> list[Any]:
        kept: list[Any] = [seen.weights for seen in self]
        if not kept or any(weights is None for weights in kept):
            _check.complain("watch", "nothing kept", "queries and keys of every layer", "watch(model, keep=True).")
        return kept

    def table(self, sample: int = 0) -> list[dict[str, Any]]:
        """One row for each call and head, with means over the queries of one sample: what JSON and CSV have.

        `sample`: of the batch; default the first. "effective" is the effective number of keys, "of" the number of keys.
        """
        rows: list[dict[str, Any]] = []
        for seen in self:
            summary, count = seen.summary, seen.tokens.length
            for head in range(_heads_of(summary)):
                row: dict[str, Any] = {"layer": seen.layer, "name": seen.name, "head": head, "of": count}
                if summary.entropy is not None:
                    row["entropy"] = float(summary.entropy[sample, head].mean())
                if summary.support is not None:
                    row["support"] = float(summary.support[sample, head].double().mean())
                    if summary.entropy is not None:
                        row["effective"] = float(summary.effective[sample, head].mean())
                rows.append(row)
        return rows


def _heads_of(summary: AttentionSummary) -> int:
    for x in (summary.entropy, summary.support, summary.received, summary.top_weights, summary.regions, summary.rows):
        if x is not None:
            return x.shape[1]
    return 0
