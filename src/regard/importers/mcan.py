"""MILVLG's MCAN (mcan-vqa) as the MCAN of regard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard import _check
from regard._problem import Problem
from regard.importers._weights import Supply, Weights, count_of, fill, read_weights, shape_of

if TYPE_CHECKING:  # other importers need fewer packages
    from regard.vqa.mcan import MCAN

_MCAN = "MILVLG's MCAN"
_LSTM = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def read_mcan(
    source: Path | str | Mapping[str, Any],
    *,
    heads: int = 8,
    cells: tuple[int, int] = (1, 100),
    tokens: int = 14,
    dropout: float = 0.1,
) -> MCAN:
    """The network of a checkpoint of mcan-vqa (epochN.pkl, its state_dict, or the same as safetensors).

    Sizes are read from the weights, except those that the weights do not determine:

    `source`: the file, or the dictionary that is in it.
    `heads`: default 8, as in both of the authors' configurations.
    `cells`: (1, number of boxes that pictures are padded to); default (1, 100).
    `tokens`: of a question; default 14.
    `dropout`: default 0.1, as in both of the authors' configurations.

    The norms are the authors' (`ModelSettings.unbiased_norm`). The result gives the scores, theirs their sigmoid:

        mask = features.abs().sum(-1) > 0                        # their padding: boxes of zeros, (B, 100)
        model(features, words, cell_mask=mask).scores.sigmoid()

    Words have the indices of their token_to_ix: `Words(tuple(sorted(token_to_ix, key=token_to_ix.get)[2:]))`. A
    question without any word is answered from the picture alone, where theirs attends to the padding.

    >>> read_mcan({"weight": torch.ones(1)})
    Traceback (most recent call last):
    regard._problem.Problem: there is no weight embedding.weight: this is no checkpoint of MILVLG's MCAN. ...
    """
    from regard.vqa.mcan import MCAN
    from regard.vqa.settings import full

    weights = read_weights(source)
    vocabulary, words = shape_of(weights, "embedding.weight", _MCAN)
    width, features = shape_of(weights, "img_feat_linear.weight", _MCAN)
    answers, fused = shape_of(weights, "proj.weight", _MCAN)
    flat = shape_of(weights, "attflat_img.mlp.fc.linear.weight", _MCAN)[0]
    for name in ("attflat_img", "attflat_lang"):
        glimpses = shape_of(weights, f"{name}.mlp.linear.weight", _MCAN)[0]
        if glimpses != 1:
            raise Problem(f"{name} has {glimpses} glimpses, and the output attention of regard one. No place for it.")
    layers = count_of(weights, "backbone.enc_list.")
    if layers != count_of(weights, "backbone.dec_list."):
        raise Problem("enc_list and dec_list have other numbers of layers, and MCAN of regard one for both.")
    if width % _check.count("heads", heads):
        _check.complain("heads", heads, f"a divisor of the width, {width}", "Take MULTI_HEAD of their configuration.")
    settings = full(
        words=words,
        tokens=tokens,
        width=width,
        heads=heads,
        layers=layers,
        feed_forward=shape_of(weights, "backbone.enc_list.0.ffn.mlp.fc.linear.weight", _MCAN)[0],
        flat=flat,
        fused=fused,
        dropout=dropout,
        coordinates=False,
        standardise=False,
        unbiased_norm=True,
    )
    model = MCAN(settings, vocabulary=vocabulary, answers=answers, cells=cells, features=features)
    take = Supply(weights, _MCAN)
    translated = _translated(take, layers)
    translated |= {
        name: getattr(model, name) for name in ("feature_mean", "feature_scale")
    }  # theirs does not normalise features
    fill(model, translated, take.left, _MCAN)
    return model.eval()


def _translated(take: Supply, layers: int) -> Weights:
    translated: Weights = {"embedding.weight": take("embedding.weight")}

    def linear(ours: str, theirs: str) -> None:
        translated.update({f"{ours}.{part}": take(f"{theirs}.{part}") for part in ("weight", "bias")})

    def norm(ours: str, theirs: str) -> None:
        translated.update({f"{ours}.weight": take(f"{theirs}.a_2"), f"{ours}.bias": take(f"{theirs}.b_2")})

    def attention(ours: str, theirs: str) -> None:
        for part in ("weight", "bias"):
            translated[f"{ours}.in_proj_{part}"] = torch.cat([take(f"{theirs}.linear_{x}.{part}") for x in "qkv"])
        linear(f"{ours}.out_proj", f"{theirs}.linear_merge")

    def layer(ours: str, theirs: str, attentions: dict[str, str]) -> None:
        for name, their_name in attentions.items():
            attention(f"{ours}.{name}", f"{theirs}.{their_name}")
        linear(f"{ours}.linear1", f"{theirs}.ffn.mlp.fc.linear")
        linear(f"{ours}.linear2", f"{theirs}.ffn.mlp.linear")
        for i in range(1, len(attentions) + 2):
            norm(f"{ours}.norm{i}", f"{theirs}.norm{i}")

    translated.update({f"lstm.{name}": take(f"lstm.{name}") for name in _LSTM})
    linear("cell", "img_feat_linear")
    for i in range(layers):
        layer(f"encoder.{i}", f"backbone.enc_list.{i}", {"self_attn": "mhatt"})
        layer(f"decoder.{i}", f"backbone.dec_list.{i}", {"self_attn": "mhatt1", "multihead_attn": "mhatt2"})
    for ours, theirs in (("flat_text", "attflat_lang"), ("flat_picture.pool", "attflat_img")):
        linear(f"{ours}.score.0", f"{theirs}.mlp.fc.linear")
        linear(f"{ours}.score.3", f"{theirs}.mlp.linear")
        linear(f"{ours}.merge", f"{theirs}.linear_merge")
    norm("norm", "proj_norm")
    linear("head", "proj")
    return translated
