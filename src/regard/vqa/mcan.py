"""The modular co-attention network (MCAN), encoder and decoder, with any attention in its layers and at its output.

Legend: B batch, T words, L cells, D width of a feature, A answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from regard import _check
from regard._repr import shown
from regard._torch import with_values
from regard.hub import Pretrained
from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder
from regard.nn import AttentionPool, TransformerDecoderLayer, TransformerEncoderLayer
from regard.nn._computed import ComputedBuffers
from regard.vqa.cells import Neighbours, coordinates, whitening
from regard.vqa.inside import cell_attention, layer_parts
from regard.vqa.kinds import Kind
from regard.vqa.marks import Marks
from regard.vqa.norm import UnbiasedNorm
from regard.vqa.output import Looked, OutputAttention
from regard.vqa.settings import ModelSettings

_PART = 4096  # rows converted to double precision at a time


class Answered(NamedTuple):
    """Output of a model: scores (B, A) before the sigmoid or softmax, and what the output attention looked at."""

    scores: Tensor
    looked: Looked

    def __repr__(self) -> str:
        return shown(self, self._asdict())


class MixingLayer(NamedTuple):
    """A layer whose self-attention mixes cells, and what enters it, (B, L, width)."""

    layer: nn.Module
    entered: Tensor


class MCAN(ComputedBuffers, Pretrained):
    """Questions and grids of features to scores of answers.

    Text: word vectors, an LSTM, layers of self-attention. Picture: a linear layer on each cell (or, if
    `settings.neighbours`, a 3 x 3 convolution, ReLU and a linear layer; with the cell's coordinates, if
    `settings.coordinates`), layers of self-attention, attention guided by the last layer of the text, and feed-forward.
    `settings.before` layers of self-attention alone come first. With `settings.guided_first` self-attention follows
    the guided attention, so that what the question marks in one cell reaches the others in the same layer; without
    `settings.guided_mixes` there is none in these layers. With `settings.marks` the first of them gives every cell
    where it lies from what the question marks (`regard.vqa.marks`). Words are pooled by discrete attention, cells by
    the output attention; the sum goes through a norm and a linear layer. With `settings.reads` "own" the values of the
    output attention are the cells as the same layers make them without marks and self-attention, so that none carries
    anything of another; its scores are those of the mixed cells.
    `loss` is the cross-entropy, summed over examples: binary, and summed over answers, or of one softmax over all
    answers with `settings.scores` "softmax"; `probabilities` are what it is the loss of.

    `save_pretrained`, `from_pretrained` and `push_to_hub` are for the network alone; `regard.vqa.Predictor` has them
    for the network with its words, answers and backbone. Both load the folder of a run too.

    `feature_mean` and `feature_scale` standardise the features, channel by channel, or, if `whitens`, all channels at
    once: with `settings.whiten`, for features of at most `settings.whiten_width` channels. `standardise` sets them,
    which training does if `settings.standardise`; until then they change nothing.

    >>> from regard.vqa.settings import small
    >>> model = MCAN(small(), vocabulary=50, answers=7, cells=(4, 4), features=32)
    >>> scores, looked = model(torch.randn(2, 4, 4, 32), torch.randint(1, 50, (2, 14)))
    >>> scores.shape, looked.weights.shape
    (torch.Size([2, 7]), torch.Size([2, 16]))
    """

    feature_mean: Tensor
    feature_scale: Tensor
    place: Tensor
    computed = ("place",)

    def __init__(
        self, settings: ModelSettings, *, vocabulary: int, answers: int, cells: tuple[int, int], features: int
    ) -> None:
        """Make the layers.

        `settings`: sizes and kinds of attention.
        `vocabulary`: the number of words, with padding and unknown.
        `answers`: the number of answers.
        `cells`: height and width of the grid.
        `features`: the width of a feature.
        """
        super().__init__()
        self.settings, self.cells = settings, cells
        self.whitens = settings.whiten and features <= (settings.whiten_width or features)
        s, d = settings, settings.width
        self.embedding = nn.Embedding(vocabulary, s.words, padding_idx=0)
        self.lstm = nn.LSTM(s.words, d, batch_first=True)
        with with_values():
            place = coordinates(*cells) if s.coordinates else torch.zeros(cells[0] * cells[1], 0)
            self.register_buffer("place", place, persistent=False)
        self.register_buffer("feature_mean", torch.zeros(features))
        self.register_buffer("feature_scale", torch.eye(features) if self.whitens else torch.ones(features))
        self.cell = Neighbours(features, d, cells) if s.neighbours else nn.Linear(features, d)
        # Coordinates have their own layer, initialised at unit scale: among many features they would have no weight.
        self.here = nn.Linear(place.shape[-1], d, bias=False) if s.coordinates else None
        if self.here is not None:
            nn.init.normal_(self.here.weight, std=(2 / place.shape[-1]) ** 0.5)
        options: dict[str, Any] = {
            "dropout": s.dropout,
            "batch_first": True,
            "norm_first": s.norm_first,
        }

        def parts() -> dict[str, Any]:  # new ones for every layer: they may hold parameters
            return layer_parts(s.affinity, s.map, d, s.heads)._asdict()

        def within() -> dict[str, Any]:
            return {"self_attention": cell_attention(s.self_attention, d, s.heads, cells)}

        def encoders(layers: int, make: Callable[[], dict[str, Any]]) -> nn.ModuleList:
            return nn.ModuleList(
                TransformerEncoderLayer(d, s.heads, s.feed_forward, **options, **make()) for _ in range(layers)
            )

        self.encoder = encoders(s.layers, parts)
        self.before = encoders(s.before, parts if s.self_attention == "discrete" else within)
        self.decoder = nn.ModuleList(
            TransformerDecoderLayer(d, s.heads, s.feed_forward, **options, **parts(), **within())
            for _ in range(s.layers)
        )
        if not s.guided_mixes:
            for layer in self.decoder:
                del layer.self_attn, layer.norm1
        self.marks = Marks(d, s.marks, cells) if s.marks else None
        self.flat_text = AttentionPool(d, s.flat, out=s.fused, dropout=s.dropout)
        self.flat_picture = OutputAttention(
            d,
            cells,
            s.attention,
            basis=s.basis,
            padding=s.padding,
            ridge_penalty=s.ridge_penalty,
            placement=s.placement,
            cell_variance=s.cell_variance,
            fitting=s.fitting,
            sums=s.sums,
            hidden=s.flat,
            out=s.fused,
            dropout=s.dropout,
        )
        self.norm: nn.Module = nn.LayerNorm(s.fused)
        self.head = nn.Linear(s.fused, answers)
        if s.unbiased_norm:
            UnbiasedNorm.put_into(self)

    def forward(
        self,
        features: Tensor,
        words: Tensor,
        rows: Tensor | None = None,
        cell_mask: Tensor | None = None,
        attention: str | Kind | None = None,
        visited: list[MixingLayer] | None = None,
    ) -> Answered:
        """Scores of answers, and the output attention.

        `features`: (B, h, w, D), or (B, L, D).
        `words`: (B, T), zeros after the end of a question. A question without words (all zeros, or T = 0) is answered
            from the picture alone: attention over nothing is zero.
        `rows`: (B,), the row of `features` that each question is about, if several are about one picture; default
            None, row b for question b.
        `cell_mask`: boolean (B, h, w), or (B, L), a row per row of features, True = takes part, for pictures with fewer
            cells, or boxes, than the grid; default None, all. The values of other cells have no influence: they get
            weight zero, and are left out of the regression of a continuous attention. Without any cell the question is
            answered from its words alone.
        `attention`: the kind of output attention of this call, a name or a value of `regard.vqa.kinds`; default that
            of the settings. All kinds have the same parameters, and the model does not change.
        `visited`: a list that every layer that mixes cells is added to, with what enters it; default None. See
            `regard.vqa.tracing`.
        """
        x = features.flatten(1, -2).to(self.head.weight.dtype)
        if x.shape[1] != math.prod(self.cells):
            expected = f"{self.cells[0]} x {self.cells[1]} cells"
            _check.complain("features", f"shape {tuple(features.shape)}", expected, "Make features of the same grid.")
        x = x - self.feature_mean
        x = x @ self.feature_scale if self.whitens else x * self.feature_scale
        present = missing = None
        if cell_mask is not None:
            present = _mask_of_cells(cell_mask, x)
            missing = ~present
            x = x.masked_fill(missing.unsqueeze(-1), 0)  # zero as beyond the border, for neighbours; NaN would spread
        x = self.cell(x) if self.here is None else self.cell(x) + self.here(self.place.to(x))
        own = x if self.settings.reads == "own" else None
        for encode in self.before:
            _note(visited, MixingLayer(encode, x))
            x = encode(x, src_key_padding_mask=missing)
        y, absent = self._read(words)
        for i, layer in enumerate(self.decoder):
            decode = cast(TransformerDecoderLayer, layer)
            # What does not depend on the question yet is computed once per picture.
            if self.settings.guided_mixes and not self.settings.guided_first:
                _note(visited, MixingLayer(decode, x))
                x = decode.within(x, key_padding_mask=missing)
            marked = self.marks(x, y, absent, rows, present) if self.marks is not None and i == 0 else None
            if rows is not None and i == 0:
                x, own = x[rows], None if own is None else own[rows]
                present, missing = (None, None) if present is None else (present[rows], ~present[rows])
            x = x if marked is None else x + marked
            x = decode.across(x, y, key_padding_mask=absent)
            if self.settings.guided_mixes and self.settings.guided_first:
                _note(visited, MixingLayer(decode, x))
                x = decode.within(x, key_padding_mask=missing)
            x = decode.feed(x)
            if own is not None:  # the same layer without self-attention: no cell gets anything from another
                own = decode.feed(decode.across(own, y, key_padding_mask=absent))
        looked: Looked = self.flat_picture(x, present, attention, own)
        text = self.flat_text(y, ~absent).context
        return Answered(self.head(self.norm(text + looked.context)), looked)

    def look_at_words(self, words: Tensor) -> Tensor:
        """The attention on each word of questions (B, T): (B, T)."""
        y, absent = self._read(words)
        weights: Tensor = self.flat_text(y, ~absent).weights
        return weights.squeeze(-2)

    def _read(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer of the text (B, T, width), and where there is no word (B, T)."""
        if not words.shape[1]:
            words = words.new_zeros(len(words), 1)
        absent = words == 0
        y, _ = self.lstm(self.embedding(words))
        for encode in self.encoder:
            y = encode(y, src_key_padding_mask=absent)
        return y, absent

    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of scores (B, A) to soft targets (B, A), summed.

        Under softmax targets are scaled to sum to one; a question without any has no loss.
        """
        if self.settings.scores == "sigmoid":
            return nn.functional.binary_cross_entropy_with_logits(scores, targets, reduction="sum")
        shares = targets / targets.sum(-1, keepdim=True).clamp_min(torch.finfo(targets.dtype).tiny)
        return nn.functional.cross_entropy(scores, shares, reduction="sum")

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities of answers (B, A) from their scores: each by itself, or together."""
        return scores.sigmoid() if self.settings.scores == "sigmoid" else scores.softmax(-1)

    def standardise(self, sample: Tensor) -> None:
        """Set the mean and scale of the features from a sample of them, (..., D)."""
        rows = sample.flatten(0, -2)
        mean = rows.mean(0, dtype=torch.float64)
        variance = torch.zeros_like(self.feature_scale, dtype=torch.float64)
        for part in rows.split(_PART):
            centred = part.double() - mean
            variance += centred.T @ centred if self.whitens else centred.square().sum(0)
        variance /= max(1, len(rows) - 1)
        self.feature_mean.copy_(mean)
        scale = 1 / (variance.diagonal() if self.whitens else variance).sqrt().clamp_min(1e-3)
        self.feature_scale.copy_(whitening(variance, scale) if self.whitens else scale)

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The model card of this network; `name` is the folder or repository that it is loaded from."""
        from regard.vqa.cards import network_card

        return network_card(self, name, license)

    def _write(self, place: ModelFolder) -> None:
        from regard.vqa.store import save_model

        save_model(place, self)

    @classmethod
    def _opened(cls, place: ModelFolder) -> Self:
        from regard.vqa.store import open_model

        return open_model(place)  # type: ignore[return-value]

    @property
    def attention(self) -> str:
        """The name of its output attention; a call may use another."""
        return self.settings.attention


def _note(visited: list[MixingLayer] | None, layer: MixingLayer) -> None:
    if visited is not None:
        visited.append(layer)


def _mask_of_cells(mask: Tensor, x: Tensor) -> Tensor:
    """The mask of cells (B, L) for features (B, L, D)."""
    flat = mask.flatten(1)
    if mask.dtype != torch.bool or flat.shape != x.shape[:2]:
        expected = f"booleans for each of {x.shape[0]} x {x.shape[1]} cells"
        _check.complain("cell_mask", f"{mask.dtype} of shape {tuple(mask.shape)}", expected, "True takes part.")
    return flat
