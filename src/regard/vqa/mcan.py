"""The modular co-attention network (MCAN), encoder and decoder, with any attention inside and at the end.

Legend: B batch, T words, L cells, D width of a feature, A answers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from regard import _check
from regard._repr import shown
from regard.hub import Pretrained
from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder
from regard.nn import AttentionPool, TransformerDecoderLayer, TransformerEncoderLayer
from regard.vqa.cells import Neighbours, coordinates, whitening
from regard.vqa.kinds import Kind, named_map
from regard.vqa.norm import UnbiasedNorm
from regard.vqa.output import Looked, OutputAttention
from regard.vqa.settings import AFFINITIES, ModelSettings

_PART = 4096  # rows that are worked on at a time in double precision


class Answered(NamedTuple):
    """What a model gives: scores (B, A) before the sigmoid, and what the output attention looked at."""

    scores: Tensor
    looked: Looked

    def __repr__(self) -> str:
        return shown(self, self._asdict())


class MCAN(Pretrained, nn.Module):
    """Questions and grids of features to scores of answers.

    Text: word vectors, an LSTM, layers of self-attention. Picture: a linear layer on each cell (or, if
    `settings.neighbours`, a 3 x 3 convolution, ReLU and a linear layer; with the cell's coordinates, if
    `settings.coordinates`), layers of self-attention, attention guided by the last layer of the text, and feed-forward.
    `settings.before` counts layers without guidance that come first; with `settings.guided_first` self-attention
    follows the guided attention: what the question marks in one cell can reach the others in the same layer. The words
    are pooled by discrete attention, the cells by the output attention; the sum goes through a norm and a linear layer.
    `loss` is the binary cross-entropy, summed over answers and examples.

    `save_pretrained`, `from_pretrained` and `push_to_hub` are for the network alone; `regard.vqa.Predictor` has them
    for the network with its words, answers and backbone. Both load the folder of a run too.

    `feature_mean` and `feature_scale` standardise the features, channel by channel, or, if `settings.whiten`, all
    channels at once; `standardise` sets them.

    >>> model = MCAN(small(), vocabulary=50, answers=7, cells=(4, 4), features=32)
    >>> scores, looked = model(torch.randn(2, 4, 4, 32), torch.randint(1, 50, (2, 14)))
    >>> scores.shape, looked.weights.shape
    (torch.Size([2, 7]), torch.Size([2, 16]))
    """

    feature_mean: Tensor
    feature_scale: Tensor
    place: Tensor

    def __init__(
        self, settings: ModelSettings, *, vocabulary: int, answers: int, cells: tuple[int, int], features: int
    ) -> None:
        """Make the layers for so many words and answers, a grid of cells, and features of this width."""
        super().__init__()
        self.settings, self.cells = settings, cells
        s, d = settings, settings.width
        self.embedding = nn.Embedding(vocabulary, s.words, padding_idx=0)
        self.lstm = nn.LSTM(s.words, d, batch_first=True)
        place = coordinates(*cells) if s.coordinates else torch.zeros(cells[0] * cells[1], 0)
        self.register_buffer("place", place, persistent=False)
        self.register_buffer("feature_mean", torch.zeros(features))
        self.register_buffer("feature_scale", torch.eye(features) if s.whiten else torch.ones(features))
        self.cell = Neighbours(features, d, cells) if s.neighbours else nn.Linear(features, d)
        # Coordinates have a layer of their own, that starts at unit scale: beside many features they would be lost.
        self.here = nn.Linear(place.shape[-1], d, bias=False) if s.coordinates else None
        if self.here is not None:
            nn.init.normal_(self.here.weight, std=(2 / place.shape[-1]) ** 0.5)
        options: dict[str, Any] = {
            "dropout": s.dropout,
            "batch_first": True,
            "norm_first": s.norm_first,
            "affinity": AFFINITIES[s.affinity],
            "map": named_map(s.map)[1],
        }

        def alone(layers: int) -> nn.ModuleList:
            return nn.ModuleList(TransformerEncoderLayer(d, s.heads, s.feed_forward, **options) for _ in range(layers))

        self.encoder, self.before = alone(s.layers), alone(s.before)
        self.decoder = nn.ModuleList(
            TransformerDecoderLayer(d, s.heads, s.feed_forward, **options) for _ in range(s.layers)
        )
        self.flat_text = AttentionPool(d, s.flat, out=s.fused, dropout=s.dropout)
        self.flat_picture = OutputAttention(
            d, cells, s.attention, basis=s.basis, hidden=s.flat, out=s.fused, dropout=s.dropout
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
    ) -> Answered:
        """Features (B, h, w, D), or (B, L, D), and words (B, T) with zeros where a question has ended.

        With `rows` (B,) question b is about the picture rows[b] of the features: several may be about one. `cell_mask`
        (B, h, w), or (B, L), is True where a cell takes part, one row for each row of features: pictures may have fewer
        cells, or boxes, than the grid. The others, whatever is in them, are attended to by none, have weight zero, and
        no part in the regression of a continuous attention. Without any cell the question is answered alone, and a
        question without words (all zeros, or T = 0) from the picture alone: attention over nothing is zero.

        `attention` is the kind of output attention to look with in this call, a name or a value of `regard.vqa.kinds`;
        by default the one that the model was made with. All have the same parameters, and the model does not change.
        """
        x = features.flatten(1, -2).to(self.head.weight.dtype)
        if x.shape[1] != math.prod(self.cells):
            expected = f"{self.cells[0]} x {self.cells[1]} cells"
            _check.complain("features", f"shape {tuple(features.shape)}", expected, "Make features of the same grid.")
        x = x - self.feature_mean
        x = x @ self.feature_scale if self.settings.whiten else x * self.feature_scale
        here = gone = None
        if cell_mask is not None:
            here = _mask_of_cells(cell_mask, x)
            gone = ~here
            x = x.masked_fill(gone.unsqueeze(-1), 0)  # as beyond the border, to a neighbour; and NaN would spread
        x = self.cell(x) if self.here is None else self.cell(x) + self.here(self.place.to(x))
        for encode in self.before:
            x = encode(x, src_key_padding_mask=gone)
        y, absent = self._read(words)
        for i, layer in enumerate(self.decoder):
            decode = cast(TransformerDecoderLayer, layer)
            # What knows nothing of a question yet is worked out once for each picture.
            if not self.settings.guided_first:
                x = decode.within(x, key_padding_mask=gone)
            if rows is not None and i == 0:
                x = x[rows]
                here, gone = (None, None) if here is None else (here[rows], ~here[rows])
            x = decode.across(x, y, key_padding_mask=absent)
            if self.settings.guided_first:
                x = decode.within(x, key_padding_mask=gone)
            x = decode.feed(x)
        looked: Looked = self.flat_picture(x, here, attention)
        told = self.flat_text(y, ~absent).context
        return Answered(self.head(self.norm(told + looked.context)), looked)

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
        """Binary cross-entropy of scores (B, A) to soft targets (B, A), summed."""
        return nn.functional.binary_cross_entropy_with_logits(scores, targets, reduction="sum")

    def standardise(self, sample: Tensor) -> None:
        """Set the mean and scale of the features from a sample of them, (..., D)."""
        rows = sample.flatten(0, -2)
        mean = rows.mean(0, dtype=torch.float64)
        spread = torch.zeros_like(self.feature_scale, dtype=torch.float64)
        for part in rows.split(_PART):
            apart = part.double() - mean
            spread += apart.T @ apart if self.settings.whiten else apart.square().sum(0)
        spread /= max(1, len(rows) - 1)
        self.feature_mean.copy_(mean)
        scale = 1 / (spread.diagonal() if self.settings.whiten else spread).sqrt().clamp_min(1e-3)
        self.feature_scale.copy_(whitening(spread, scale) if self.settings.whiten else scale)

    def card(self, name: str, *, license: str | None = None) -> Card:
        """The README.md of this network, under the name that it is loaded by."""
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
        """The name of its output attention; a call may look with another."""
        return self.settings.attention


def _mask_of_cells(mask: Tensor, x: Tensor) -> Tensor:
    """The mask of cells (B, L) for features (B, L, D)."""
    flat = mask.flatten(1)
    if mask.dtype != torch.bool or flat.shape != x.shape[:2]:
        expected = f"booleans for each of {x.shape[0]} x {x.shape[1]} cells"
        _check.complain("cell_mask", f"{mask.dtype} of shape {tuple(mask.shape)}", expected, "True takes part.")
    return flat
