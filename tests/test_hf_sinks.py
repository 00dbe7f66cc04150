"""Sinks, soft caps and sigmoids in models of transformers: with softmax the numbers of eager attention."""

import math

import pytest
import torch

pytest.importorskip("transformers")
import transformers

import regard
import regard.hf
from regard.hf._attention import attention
from tools.hf_zoo.models import make, twin
from tools.hf_zoo.shrink import tiny

regard.hf.register()


def make_pair(kind, cls, implementation="regard_softmax"):
    """A tiny model with eager attention and its twin; sinks and queries far from zero."""
    config = tiny(kind)
    torch.manual_seed(0)
    eager = make(cls, config, "eager")
    with torch.no_grad():
        for name, x in eager.named_parameters():
            x.normal_(std=1.0 if name.endswith("sinks") else 0.3) if x.dim() > 1 or name.endswith("sinks") else None
    return eager, twin(eager, config, implementation)


def make_ids(length=9):
    return torch.randint(3, 40, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("padded", [False, True])
def test_gpt_oss_has_the_logits_of_eager_attention(padded):
    eager, ours = make_pair("gpt_oss", transformers.GptOssForCausalLM)
    given = {"input_ids": make_ids()}
    if padded:
        given["attention_mask"] = torch.ones(2, 9, dtype=torch.long)
        given["attention_mask"][0, :3] = 0
    expected, got = eager(**given, output_attentions=True), ours(**given, output_attentions=True)
    keep = torch.ones(2, 9, dtype=torch.bool) if not padded else given["attention_mask"].bool()
    torch.testing.assert_close(got.logits[keep], expected.logits[keep], rtol=1e-4, atol=1e-5)
    for p, e in zip(got.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(p.transpose(1, 2)[keep], e.transpose(1, 2)[keep], rtol=1e-4, atol=1e-5)
        assert (p.sum(-1) < 0.99).any()  # the sinks take their share


def test_gpt_oss_has_the_gradients_of_its_sinks():
    pair = make_pair("gpt_oss", transformers.GptOssForCausalLM)
    for model in pair:
        model(input_ids=make_ids()).logits.square().mean().backward()
    gradients = [{n: x.grad for n, x in model.named_parameters() if n.endswith("sinks")} for model in pair]
    assert gradients[0]
    for name, expected in gradients[0].items():
        assert expected.abs().max() > 0
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["regard_sparsemax", "regard_entmax15", "regard_w2"])
def test_other_maps_in_a_model_with_sinks(name):
    _, ours = make_pair("gpt_oss", transformers.GptOssForCausalLM, name)
    out = ours(input_ids=make_ids(), output_attentions=True)
    assert out.logits.isfinite().all()
    torch.testing.assert_close(ours(input_ids=make_ids()).logits, out.logits, rtol=1e-4, atol=1e-5)
    assert all((p.sum(-1) <= 1 + 1e-5).all() and (p.sum(-1) < 0.99).any() for p in out.attentions)


def test_a_sigmoid_beside_a_sink_is_an_error():
    _, ours = make_pair("gpt_oss", transformers.GptOssForCausalLM, "regard_sigmoid")
    with pytest.raises(ValueError, match=r"^sink: got one with Gate"):
        ours(input_ids=make_ids())


@pytest.mark.parametrize(
    ("kind", "cls"),
    [("gemma2", transformers.Gemma2ForCausalLM), ("videoprism_text_model", transformers.VideoPrismTextModel)],
)
def test_models_with_a_soft_cap(kind, cls):
    eager, ours = make_pair(kind, cls)
    expected, got = (model(input_ids=make_ids())[0] for model in (eager, ours))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "cls"), [("gpt_oss", transformers.GptOssForCausalLM), ("gemma2", transformers.Gemma2ForCausalLM)]
)
def test_watching_sinks_and_caps_gives_the_summaries_of_eager_attention(kind, cls):
    seen = []
    for model in make_pair(kind, cls):
        plain = model(input_ids=make_ids()).logits
        with regard.hf.watch(model, top=2, rows=[-1], keep=True) as one:
            assert torch.equal(model(input_ids=make_ids()).logits, plain)
        seen.append(one)
    assert len(seen[0]) == len(seen[1]) > 0
    for expected, got in zip(*seen, strict=True):
        for name in ("entropy", "received", "top_weights", "rows"):
            torch.testing.assert_close(
                getattr(got.summary, name), getattr(expected.summary, name), rtol=1e-4, atol=1e-5
            )
    torch.testing.assert_close(seen[1].rollout([-1]), seen[0].rollout([-1]), rtol=1e-4, atol=1e-5)
    if kind == "gpt_oss":
        assert (seen[1][0].summary.rows.sum(-1) < 0.99).any()


def test_sinks_and_caps_by_hand():
    q, k, v = (torch.randn(2, 4, n, 8) for n in (3, 5, 5))
    sinks = torch.randn(4)
    c, p = attention(
        regard.Dot, regard.Softmax(), torch.nn.Module(), q, k, v, None, softcap=0.5, s_aux=sinks, output_attentions=True
    )
    s = 0.5 * torch.tanh(q @ k.mT / 8**0.5 / 0.5)
    expected = torch.softmax(torch.cat([s, sinks.view(1, 4, 1, 1).expand(2, 4, 3, 1)], -1), -1)[..., :5]
    torch.testing.assert_close(p, expected)
    torch.testing.assert_close(c, (expected @ v).transpose(1, 2))


@pytest.mark.parametrize("kind", ["none", "padding", "causal", "added"])
def test_the_bias_of_a_sigmoid_is_minus_log_of_the_keys_that_a_query_sees(kind):
    q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    added, how = torch.zeros(2, 1, 5, 5), {"attention_mask": None}
    if kind == "padding":
        mask[0, ..., :2] = False
        how = {"attention_mask": mask}
    elif kind == "causal":
        mask = mask.tril()
        how = {"attention_mask": None, "is_causal": True}
    elif kind == "added":
        mask[1, ..., 3:] = False
        added = torch.randn(2, 1, 5, 5)
        how = {"attention_mask": added.masked_fill(~mask, torch.finfo(torch.float32).min)}
    module = torch.nn.Module()
    c, p = attention(regard.Dot, regard.Gate(), module, q, k, v, **how, output_attentions=True)
    bias = -mask.sum(-1, keepdim=True).float().log()
    expected = torch.sigmoid(q @ k.mT / math.sqrt(8) + added + bias) * mask
    torch.testing.assert_close(p, expected)
    torch.testing.assert_close(c, (expected @ v).transpose(1, 2))
    assert attention(regard.Dot, regard.Gate(), module, q, k, v, **how)[1] is None
