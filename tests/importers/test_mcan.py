"""Checkpoints in the layout of MILVLG's code, against a plain twin of its network that works on the names alone."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, relu

from regard._problem import Problem
from regard.importers import read_mcan
from regard.vqa.mcan import MCAN

SIZES = {"vocabulary": 11, "words": 6, "width": 8, "features": 5, "ff": 12, "flat": 7, "fused": 10, "answers": 4}


def checkpoint(layers=2, glimpses=1, **changes):
    """Random weights by the names that their modules have."""
    s = SIZES | changes
    d, weights = s["width"], {}

    def put(name, *shape):
        weights[name] = torch.randn(*shape) * (2 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.3)

    def norm(name, width):
        put(f"{name}.a_2", width)
        put(f"{name}.b_2", width)
        weights[f"{name}.a_2"] += 1

    def dense(name, inputs, outputs):
        put(f"{name}.weight", outputs, inputs)
        put(f"{name}.bias", outputs)

    put("embedding.weight", s["vocabulary"], s["words"])
    for name, shape in (("weight_ih", (4 * d, s["words"])), ("weight_hh", (4 * d, d)), ("bias_ih", (4 * d,))):
        put(f"lstm.{name}_l0", *shape)
    put("lstm.bias_hh_l0", 4 * d)
    dense("img_feat_linear", s["features"], d)
    for i in range(layers):
        for place, attentions in (
            (f"backbone.enc_list.{i}", ["mhatt"]),
            (f"backbone.dec_list.{i}", ["mhatt1", "mhatt2"]),
        ):
            for name in attentions:
                for part in ("v", "k", "q", "merge"):
                    dense(f"{place}.{name}.linear_{part}", d, d)
            dense(f"{place}.ffn.mlp.fc.linear", d, s["ff"])
            dense(f"{place}.ffn.mlp.linear", s["ff"], d)
            for k in range(1, len(attentions) + 2):
                norm(f"{place}.norm{k}", d)
    for name in ("attflat_img", "attflat_lang"):
        dense(f"{name}.mlp.fc.linear", d, s["flat"])
        dense(f"{name}.mlp.linear", s["flat"], glimpses)
        dense(f"{name}.linear_merge", d * glimpses, s["fused"])
    norm("proj_norm", s["fused"])
    dense("proj", s["fused"], s["answers"])
    return weights


class Twin:
    """Their network as arithmetic on named weights, one picture and one question at a time."""

    def __init__(self, weights, heads):
        self.w, self.heads = {name: w.double() for name, w in weights.items()}, heads
        self.layers = len({name.split(".")[2] for name in weights if name.startswith("backbone.enc_list")})

    def dense(self, name, x):
        return linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, name, x):
        n = x.shape[-1]
        centred = x - x.sum(-1, keepdim=True) / n
        deviation = (centred.square().sum(-1, keepdim=True) / (n - 1)).sqrt()
        return self.w[f"{name}.a_2"] * centred / (deviation + 1e-6) + self.w[f"{name}.b_2"]

    def attention(self, name, queries, keys):
        q, k, v = (self.dense(f"{name}.linear_{p}", x) for p, x in (("q", queries), ("k", keys), ("v", keys)))
        d = q.shape[-1] // self.heads
        parts = []
        for h in range(self.heads):
            at = slice(h * d, (h + 1) * d)
            scores = q[:, at] @ k[:, at].T / math.sqrt(d)
            parts.append(torch.softmax(scores, -1) @ v[:, at])
        return self.dense(f"{name}.linear_merge", torch.cat(parts, -1))

    def feed(self, name, x):
        return self.dense(f"{name}.ffn.mlp.linear", relu(self.dense(f"{name}.ffn.mlp.fc.linear", x)))

    def flat(self, name, x):
        scores = self.dense(f"{name}.mlp.linear", relu(self.dense(f"{name}.mlp.fc.linear", x)))
        return self.dense(f"{name}.linear_merge", (torch.softmax(scores, 0) * x).sum(0))

    def recurrent(self, x):
        h = c = torch.zeros(self.w["lstm.weight_hh_l0"].shape[1], dtype=x.dtype)
        out = []
        for row in x:
            gates = self.w["lstm.weight_ih_l0"] @ row + self.w["lstm.bias_ih_l0"]
            gates = gates + self.w["lstm.weight_hh_l0"] @ h + self.w["lstm.bias_hh_l0"]
            i, f, g, o = gates.chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
        return torch.stack(out)

    def __call__(self, boxes, question):
        # What is masked takes no part: it might as well not be there.
        x = self.dense("img_feat_linear", boxes[boxes.abs().sum(-1) != 0])
        y = self.recurrent(self.w["embedding.weight"][question[question != 0]])
        for i in range(self.layers):
            name = f"backbone.enc_list.{i}"
            y = self.norm(f"{name}.norm1", y + self.attention(f"{name}.mhatt", y, y))
            y = self.norm(f"{name}.norm2", y + self.feed(name, y))
        for i in range(self.layers):
            name = f"backbone.dec_list.{i}"
            x = self.norm(f"{name}.norm1", x + self.attention(f"{name}.mhatt1", x, x))
            x = self.norm(f"{name}.norm2", x + self.attention(f"{name}.mhatt2", x, y))
            x = self.norm(f"{name}.norm3", x + self.feed(name, x))
        fused = self.norm("proj_norm", self.flat("attflat_lang", y) + self.flat("attflat_img", x))
        return self.dense("proj", fused).sigmoid()


def asked():
    torch.manual_seed(1)
    boxes, words = torch.randn(3, 9, SIZES["features"], dtype=torch.float64), torch.randint(1, 11, (3, 6))
    boxes[0, 4:], boxes[2, 8:], words[1, 3:], words[2, 1:] = 0, 0, 0, 0
    return boxes, words


@pytest.mark.parametrize("heads", [2, 4])
def test_outputs_are_those_of_the_original(tmp_path, heads):
    torch.manual_seed(0)
    weights = checkpoint()
    path = tmp_path / "epoch13.pkl"
    torch.save({"state_dict": weights, "optimizer": {"state": {}, "param_groups": []}, "lr_base": 1e-4}, path)
    save_file(weights, tmp_path / "mcan.safetensors")
    boxes, words = asked()
    expected = torch.stack([Twin(weights, heads)(b, q) for b, q in zip(boxes, words, strict=True)])
    for source in (path, tmp_path / "mcan.safetensors", {f"module.{n}": w for n, w in weights.items()}):
        model = read_mcan(source, heads=heads, cells=(1, 9)).double()
        assert not model.training
        got = model(boxes, words, cell_mask=boxes.abs().sum(-1) > 0).scores.sigmoid()
        assert torch.allclose(got, expected, atol=1e-10)
    assert expected.std(0).min() > 1e-3
    off = model(boxes, words).scores.sigmoid()
    assert (off - expected).abs().max() > 1e-3  # boxes of zeros are no boxes
    plain = MCAN(replace(model.settings, unbiased_norm=False), vocabulary=11, answers=4, cells=(1, 9), features=5)
    plain.double().load_state_dict(model.state_dict())
    other = plain.eval()(boxes, words, cell_mask=boxes.abs().sum(-1) > 0).scores.sigmoid()
    assert (other - expected).abs().max() > 1e-3  # and their norm is not torch's


def test_the_norm_is_stored_with_the_settings(tmp_path):
    model = read_mcan(checkpoint(), heads=2, cells=(3, 3))
    assert model.settings.unbiased_norm
    again = MCAN.from_pretrained(model.save_pretrained(tmp_path))
    boxes, words = asked()
    assert again.settings == model.settings
    assert torch.equal(again(boxes, words).scores, model(boxes, words).scores)
    assert not MCAN(type(model.settings)(), vocabulary=3, answers=2, cells=(2, 2), features=4).settings.unbiased_norm


def test_what_has_no_place_is_refused_by_name(tmp_path):
    weights = checkpoint()
    with pytest.raises(Problem, match=r"1 weights have no place in MILVLG's MCAN: bbox_linear\.weight"):
        read_mcan(weights | {"bbox_linear.weight": torch.ones(2, 2)}, heads=2)
    with pytest.raises(Problem, match="attflat_img has 2 glimpses"):
        read_mcan(checkpoint(glimpses=2), heads=2)
    without = {n: w for n, w in weights.items() if n != "backbone.dec_list.1.mhatt2.linear_k.bias"}
    with pytest.raises(Problem, match=r"no weight backbone\.dec_list\.1\.mhatt2\.linear_k\.bias"):
        read_mcan(without, heads=2)
    with pytest.raises(Problem, match="other numbers of layers"):
        read_mcan({n: w for n, w in weights.items() if "dec_list.1" not in n}, heads=2)
    with pytest.raises(Problem, match=r"lstm\.weight_hh_l0 \(3, 8\), not \(32, 8\)"):
        read_mcan(weights | {"lstm.weight_hh_l0": torch.ones(3, 8)}, heads=2)
    with pytest.raises(ValueError, match="a divisor of the width, 8"):
        read_mcan(weights, heads=3)
    with pytest.raises(Problem, match="not a file"):
        read_mcan(tmp_path / "none.pkl")
    (tmp_path / "bad.pkl").write_bytes(b"nothing")
    with pytest.raises(Problem, match="cannot be read as tensors"):
        read_mcan(tmp_path / "bad.pkl")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(Problem, match="is broken"):
        read_mcan(tmp_path / "bad.safetensors")
    torch.save({"state_dict": {"a": 1}}, tmp_path / "odd.pkl")
    with pytest.raises(Problem, match="holds no weights by name"):
        read_mcan(tmp_path / "odd.pkl")


def test_nothing_of_a_pickle_is_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").mkdir, ())

    torch.save({"state_dict": checkpoint(), "more": Trap()}, tmp_path / "trap.pkl")
    with pytest.raises(Problem, match="could run code"):
        read_mcan(tmp_path / "trap.pkl", heads=2)
    assert not (tmp_path / "ran").exists()
