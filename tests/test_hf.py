"""regard's attentions in tiny random Hugging Face models: with softmax the model's own numbers; masks; generation."""

import copy
import math
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, LlamaConfig, ViTConfig

import regard
import regard.hf
from regard.hf._attention import attention
from regard.hf._masks import float_mask, mask_and_bias
from regard.nn import Entmax

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
WORDS = {"vocab_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
CONFIGS = {
    "bert": lambda: BertConfig(**SIZES, **WORDS),
    "vit": lambda: ViTConfig(**SIZES, image_size=32, patch_size=8),
    "llama": lambda: LlamaConfig(**SIZES, **WORDS, num_key_value_heads=2, bos_token_id=1, eos_token_id=2),
}
NAMES = [name for name in regard.hf.register() if "continuous" not in name]  # those have a file of their own
ROWWISE = [name for name in NAMES if name != "regard_sinkhorn"]


def make(kind, implementation, like=None, **settings):
    """A model with this attention, and queries large enough that its attention is far from uniform."""
    config = CONFIGS[kind]() if isinstance(kind, str) else copy.deepcopy(kind)
    for key, value in settings.items():
        setattr(config, key, value)
    auto = AutoModelForCausalLM if config.model_type in ("llama", "mistral", "gpt2") else AutoModel
    model = auto.from_config(config, attn_implementation=implementation).eval()
    if like is not None:
        model.load_state_dict(like.state_dict())
        return model
    with torch.no_grad():
        for name, x in model.named_parameters():
            if any(part in name for part in ("query", "key", "q_proj", "k_proj", "c_attn")):
                x.normal_(std=0.3 if implementation == "regard_sinkhorn" else 1.0)
    return model


def make_inputs(kind, padded=None, length=9):
    if kind == "vit":
        return {"pixel_values": torch.randn(3, 3, 32, 32)}
    given = {"input_ids": torch.randint(3, 40, (3, length))}
    if padded is not None:
        mask = torch.ones(3, length, dtype=torch.long)
        for row, n in ((0, 3), (1, 6)):
            mask[row, : n if padded == "left" else None] = 0 if padded == "left" else 1
            if padded == "right":
                mask[row, -n:] = 0
        given["attention_mask"] = mask
    return given


def main_output(out):
    return out.logits if "logits" in out else out.last_hidden_state


CASES = [("bert", None), ("bert", "right"), ("vit", None), ("llama", None), ("llama", "left"), ("llama", "right")]


@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize(("kind", "padded"), CASES)
def test_softmax_is_the_models_own(kind, padded, with_weights):
    eager = make(kind, "eager")
    ours = make(kind, "regard_softmax", like=eager)
    given = make_inputs(kind, padded)
    expected, got = (model(**given, output_attentions=with_weights) for model in (eager, ours))
    real = given["attention_mask"].bool() if padded else ...
    torch.testing.assert_close(main_output(got)[real], main_output(expected)[real], rtol=0, atol=1e-5)
    assert all(x.isfinite().all() for x in main_output(got))
    if with_weights:
        assert len(got.attentions) == 2
        for ours_p, p in zip(got.attentions, expected.attentions, strict=True):
            torch.testing.assert_close(ours_p.transpose(1, 2)[real], p.transpose(1, 2)[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "vit", "llama"])
def test_softmax_has_the_gradients_of_the_model(kind):
    eager = make(kind, "eager")
    ours = make(kind, "regard_softmax", like=eager)
    given = make_inputs(kind)
    grads = []
    for model in (eager, ours):
        main_output(model(**given)).square().mean().backward()
        grads.append({name: x.grad for name, x in model.named_parameters() if x.grad is not None})
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-6)


# Doubly stochastic attention cannot be causal.
MAPPED = [(*case, name) for name in NAMES for case in CASES if not (name == "regard_sinkhorn" and case[0] == "llama")]


@pytest.mark.parametrize(("kind", "padded", "name"), MAPPED)
def test_attentions_are_the_maps(kind, padded, name):
    model = make(kind, name)
    given = make_inputs(kind, padded)
    out = model(**given, output_attentions=True)
    torch.testing.assert_close(main_output(out), main_output(model(**given)), rtol=1e-4, atol=1e-5)
    p = torch.stack(out.attentions)
    keys = p.shape[-1]
    allowed = torch.ones(3, 1, keys, keys, dtype=torch.bool)
    if padded:
        allowed = allowed & given["attention_mask"].bool()[:, None, None, :]
    if kind == "llama":
        allowed = allowed & torch.ones(keys, keys, dtype=torch.bool).tril()
    assert (p.masked_select(~allowed) == 0).all()
    rows = allowed.any(-1).expand(p.shape[:-1])
    if name != "regard_sigmoid":
        torch.testing.assert_close(p.sum(-1), rows.float())
    zeros = (p.masked_select(allowed.expand_as(p)) == 0).float().mean()
    sparse = name in ("regard_sparsemax", "regard_entmax15", "regard_entmax")
    assert zeros > 0.2 if sparse else zeros < 0.2
    if name == "regard_sinkhorn" and padded is None:
        torch.testing.assert_close(p.sum(-2), torch.ones(p.shape[:-1]), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "map_"),
    [
        ("regard_sparsemax", regard.sparsemax),
        ("regard_entmax15", partial(regard.entmax, alpha=1.5)),
        ("regard_entmax", partial(regard.entmax, alpha=1.5)),
        ("regard_sigmoid", lambda s, mask: torch.sigmoid(s - math.log(17))),
        ("regard_sinkhorn", regard.Sinkhorn(iterations=100, tol=1e-3)),
        ("regard_w2", None),
    ],
)
def test_first_layer_by_hand(name, map_):
    model = make("vit", name)
    given = make_inputs("vit")
    out = model(**given, output_attentions=True, output_hidden_states=True)
    layer = next(m for m in model.modules() if hasattr(m, "is_causal"))
    norm = next(m for n, m in model.named_modules() if n.endswith("layernorm_before"))
    x = norm(out.hidden_states[0])
    q, k = (p(x).unflatten(-1, (4, 8)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj))
    if map_ is None:
        q, k = (torch.cat([z[..., :4], torch.nn.functional.softplus(z[..., 4:])], -1) for z in (q, k))
        p = torch.softmax(-torch.cdist(q, k).square() / (2 * 8**0.5), -1)
    else:
        p = map_(q @ k.mT / 8**0.5, mask=None)
    torch.testing.assert_close(out.attentions[0], p, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [None, "left"])
@pytest.mark.parametrize("name", ROWWISE)
def test_generation_with_a_cache_equals_without(name, padded):
    model = make("llama", name)
    given = make_inputs("llama", padded)
    how = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    whole = model.generate(**given, use_cache=False, **how)
    for cache in ({}, {"cache_implementation": "static"}):
        cached = model.generate(**given, use_cache=True, **cache, **how)
        assert (cached.sequences == whole.sequences).all()
        torch.testing.assert_close(cached.logits, whole.logits, rtol=0, atol=2e-5)


def test_generation_returns_attentions():
    model = make("llama", "regard_sparsemax")
    how = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True, "output_attentions": True}
    out = model.generate(**make_inputs("llama"), **how)
    assert [step[0].shape for step in out.attentions] == [(3, 4, 9, 9), (3, 4, 1, 10), (3, 4, 1, 11)]


@pytest.mark.parametrize(
    "config",
    [
        transformers.MistralConfig(**SIZES, **WORDS, num_key_value_heads=2, sliding_window=4),
        transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        transformers.T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
        transformers.Dinov2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
        ),
        transformers.CLIPVisionConfig(**SIZES, image_size=32, patch_size=8),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_have_their_own_numbers(config):
    eager = make(config, "eager")
    ours = make(config, "regard_softmax", like=eager)
    given = make_inputs("vit" if hasattr(config, "image_size") else "words")
    if config.model_type == "t5":
        given["decoder_input_ids"] = given["input_ids"][:, :5]
    expected, got = (main_output(model(**given)) for model in (eager, ours))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_float_masks_and_position_biases_are_added_to_the_scores():
    q, k, v = (torch.randn(2, 4, n, 8) for n in (3, 5, 5))
    bias, mask = torch.randn(1, 4, 3, 5), torch.randn(2, 1, 3, 5)
    module = torch.nn.Module()
    for given in ({"position_bias": bias}, {"attention_mask": mask}, {"position_bias": bias, "attention_mask": mask}):
        how = {"attention_mask": None} | given
        c, p = attention(regard.Dot, regard.softmax, module, q, k, v, **how, output_attentions=True)
        expected = torch.softmax(q @ k.mT / 8**0.5 + sum(given.values()), -1)
        torch.testing.assert_close(p, expected)
        torch.testing.assert_close(c, (expected @ v).transpose(1, 2))


def test_what_regard_does_not_know_is_refused():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match=r"^block_indices: got Tensor, expected None"):
        attention(regard.Dot, regard.softmax, torch.nn.Module(), q, q, q, None, block_indices=torch.zeros(1))


def test_a_causal_model_must_not_see_the_future_through_sinkhorn():
    with pytest.raises(ValueError, match=r"^attn_implementation: got 'regard_sinkhorn' in a causal model"):
        make("llama", "regard_sinkhorn")(**make_inputs("llama"))


@pytest.mark.parametrize("name", ["regard_softmax", "regard_sparsemax"])
def test_dropout_in_training(name):
    model = make("bert", name, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    given = make_inputs("bert")
    assert (main_output(model(**given)) == main_output(model(**given))).all()
    model.train()
    assert (main_output(model(**given)) != main_output(model(**given))).any()


@pytest.mark.parametrize("kind", ["bert", "vit", "llama"])
def test_learned_alphas(kind, tmp_path):
    model = make(kind, "regard_entmax")
    names = regard.hf.learn_alpha(model, 1.4)
    assert len(names) == 2
    assert regard.hf.learn_alpha(model) == []
    alphas = [x for name, x in model.named_parameters() if "regard_map" in name]
    assert [x.shape for x in alphas] == [(4, 1, 1)] * 2
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    given = make_inputs(kind)
    out = model.train()(**given, output_attentions=True)
    sum(p.square().sum() for p in out.attentions).backward()
    before = [x.detach().clone() for x in alphas]
    optimiser.step()
    assert all((x.grad != 0).all() for x in alphas)
    assert all((x != y).all() for x, y in zip(alphas, before, strict=True))
    save_file(model.eval().state_dict(), tmp_path / "model.safetensors")
    other = make(kind, "regard_entmax")
    regard.hf.learn_alpha(other)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(main_output(other(**given)), main_output(model(**given)))


def test_alphas_that_nobody_learns_are_fixed_and_say_so():
    model = make("vit", "regard_entmax")
    fixed = make("vit", "regard_entmax15", like=model)
    given = make_inputs("vit")
    torch.testing.assert_close(main_output(model(**given)), main_output(fixed(**given)))
    assert not any(isinstance(m, Entmax) for m in model.modules())
    with pytest.warns(UserWarning, match="Call regard.hf.learn_alpha"):
        model.train()(**given)


SAVED = {
    "bert": (transformers.AutoModelForMaskedLM, AutoModel, lambda: CONFIGS["bert"]()),
    "vit": (transformers.AutoModelForImageClassification, AutoModel, lambda: CONFIGS["vit"]()),
    "llama": (AutoModelForCausalLM, AutoModel, lambda: CONFIGS["llama"]()),
    "layoutlm": (transformers.AutoModelForMaskedLM, AutoModel, lambda: transformers.LayoutLMConfig(**SIZES, **WORDS)),
    "clip": (
        AutoModel,
        transformers.CLIPVisionModel,
        lambda: transformers.CLIPConfig(
            text_config={**SIZES, **WORDS}, vision_config={**SIZES, "image_size": 32, "patch_size": 8}
        ),
    ),
}


@pytest.mark.parametrize("kind", SAVED)
def test_learned_alphas_survive_saving_and_loading(kind, tmp_path):
    auto, part, config = SAVED[kind]
    model = auto.from_config(config(), attn_implementation="regard_entmax")
    assert regard.hf.learn_alpha(model) == regard.hf.check(model).reached
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "regard_map" in name:
                x.uniform_(-1, 1)
    kept = {name: x.clone() for name, x in model.state_dict().items() if "regard_map" in name}
    model.save_pretrained(tmp_path)
    for cls in (auto, part):
        for dtype in (torch.float32, torch.bfloat16):
            again = cls.from_pretrained(tmp_path, attn_implementation="regard_entmax", dtype=dtype)
            loaded = {name: x for name, x in again.state_dict().items() if "regard_map" in name}
            assert len(loaded) == (len(kept) if cls is auto or kind != "clip" else 2)
            for name, x in loaded.items():
                [same] = [
                    y
                    for other, y in kept.items()
                    if (other.endswith(name) and ("vision" in other or kind != "clip")) or other == name
                ]
                assert x.dtype == torch.float32
                assert (x == same).all()
            assert regard.hf.learn_alpha(again) == []


def test_alphas_that_would_be_lost_say_so(tmp_path):
    model = make("bert", "regard_entmax")
    regard.hf.learn_alpha(model)
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="learned alphas, which 'sdpa' does not use"):
        AutoModel.from_pretrained(tmp_path)
    config = CONFIGS["bert"]()
    config.regard_alpha = {"a.module.of.another.class": 4}
    other = AutoModel.from_config(config, attn_implementation="regard_entmax")
    with pytest.raises(ValueError, match=r"^model: got no alphas in BertSelfAttention"):
        other(**make_inputs("bert"))


def test_learn_alpha_wants_the_attention_that_learns():
    with pytest.raises(ValueError, match=r"^model: got BertModel, expected a transformers model whose attentions call"):
        regard.hf.learn_alpha(make("bert", "regard_sparsemax"))


def test_learn_alpha_needs_attentions():
    with pytest.raises(ValueError, match=r"^model: got Linear, expected a transformers model"):
        regard.hf.learn_alpha(torch.nn.Linear(2, 2))


def causal_mask(length=5, padding=None, **how):
    """As a decoder of transformers asks for it."""
    how = {"batch_size": 2, "q_length": length, "kv_length": length, "dtype": torch.float32} | how
    return float_mask(attention_mask=padding, **how)


def test_masks_are_floats_for_models_that_add_them():
    mask = causal_mask()
    low = torch.finfo(torch.float32).min
    assert (mask == torch.full((5, 5), low).triu(1)).all()
    assert causal_mask(dtype=torch.float16).dtype == torch.float16


def test_an_unchanged_causal_mask_needs_no_mask_at_all():
    mask = causal_mask()
    assert mask_and_bias(mask, 5, 5) == (None, None, True)
    padding = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = mask_and_bias(causal_mask(padding=padding), 5, 5)
    expected = torch.ones(5, 5, dtype=torch.bool).tril() & padding[:, None, None, :]
    assert (found.mask == expected).all()
    assert found[1:] == (None, False)


def test_a_mask_that_was_changed_is_read_again():
    in_place = causal_mask()
    in_place[..., 0] = torch.finfo(torch.float32).min
    for mask in (in_place, causal_mask().clone(), causal_mask()[..., :4], causal_mask() * 1):
        found = mask_and_bias(mask, 5, mask.shape[-1])
        assert (found.mask == (mask == 0)).all()
        assert found[1:] == (None, False)


def test_a_mask_of_another_size_is_cut():
    found = mask_and_bias(causal_mask(kv_length=8), 5, 8)
    assert found.causal  # the first five of eight keys: a cache that is being filled
    assert mask_and_bias(causal_mask(), 5, 3).causal
    assert mask_and_bias(causal_mask()[..., -1:, :].bool(), 1, 3).mask.shape[-1] == 3


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -float("inf"), torch.finfo(torch.float32).min * 0.6])
def test_floats_that_leave_out_and_floats_that_are_added(low):
    mask = torch.tensor([[0.0, low, 1.5], [-1e4, 0.0, low]])
    found = mask_and_bias(mask, 2, 3)
    assert (found.mask == torch.tensor([[True, False, True], [True, True, False]])).all()
    assert (found.bias == torch.tensor([[0.0, 0.0, 1.5], [-1e4, 0.0, 0.0]])).all()


def test_no_value_of_a_mask_is_read_where_that_would_be_waited_for():
    mask = torch.zeros(2, 1, 5, 5, device="meta")
    found = mask_and_bias(mask, 5, 5)
    assert found.mask.shape == found.bias.shape == mask.shape
    learned = torch.zeros(5, 5, requires_grad=True)
    assert mask_and_bias(learned, 5, 5).bias.requires_grad


def test_a_causal_model_without_padding_takes_the_fused_path(monkeypatch):
    seen = []
    monkeypatch.setattr("regard.hf._attention.attend_heads", lambda *a, **k: seen.append((a[5], k)) or (a[2], None))
    model = make("llama", "regard_softmax")
    model(**make_inputs("llama"))
    model(**make_inputs("llama"), attention_mask=torch.ones(3, 9, dtype=torch.long))
    assert len(seen) == 4
    assert all(mask is None and how["causal"] and how["bias"] is None for mask, how in seen)


@pytest.mark.parametrize("name", ["regard_softmax", "regard_sparsemax"])
def test_inference_mode(name):
    model = make("llama", name)
    given = make_inputs("llama", "left")
    expected = main_output(model(**given))
    with torch.inference_mode():
        torch.testing.assert_close(main_output(model(**given)), expected)


def test_a_decoder_compiles_in_one_piece():
    torch.compiler.reset()
    model = make("llama", "regard_sparsemax")
    ids = make_inputs("llama")["input_ids"]
    compiled = torch.compile(lambda x: model(input_ids=x, use_cache=False).logits, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), model(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


def test_the_keys_that_a_model_chooses_are_the_only_ones():
    q, k, v = (torch.randn(2, 4, n, 8) for n in (3, 5, 5))
    indices = torch.tensor([[0, 1], [1, 2], [4, 4]]).expand(2, 3, 2)
    c, p = attention(
        regard.Dot, regard.softmax, torch.nn.Module(), q, k, v, None, indices=indices, output_attentions=True
    )
    allowed = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
    expected = torch.softmax((q @ k.mT / 8**0.5).masked_fill(~allowed, -float("inf")), -1)
    torch.testing.assert_close(p, expected)
    torch.testing.assert_close(c, (expected @ v).transpose(1, 2))


def test_rows_without_keys_are_zero_where_eager_is_uniform():
    q = torch.randn(1, 2, 3, 8)
    mask = torch.full((1, 1, 3, 3), torch.finfo(torch.float32).min)
    c, p = attention(regard.Dot, regard.softmax, torch.nn.Module(), q, q, q, mask, output_attentions=True)
    assert (p == 0).all()
    assert (c == 0).all()


def test_bfloat16_model():
    eager = make("vit", "eager").bfloat16()
    for name in NAMES:
        model = make("vit", name)
        if name == "regard_entmax":
            regard.hf.learn_alpha(model)
        model = model.bfloat16()
        out = main_output(model(pixel_values=torch.randn(2, 3, 32, 32).bfloat16()))
        assert out.dtype == main_output(eager(pixel_values=torch.randn(2, 3, 32, 32).bfloat16())).dtype
        assert out.isfinite().all()


def test_compiles_in_one_piece():
    torch.compiler.reset()
    model = make("vit", "regard_sparsemax")
    given = make_inputs("vit")
    compiled = torch.compile(lambda x: model(pixel_values=x).last_hidden_state, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given["pixel_values"]), model(**given).last_hidden_state)


def test_the_example_runs(monkeypatch, capsys):
    path = Path(__file__).parent.parent / "examples" / "sparse_vit.py"
    assert len(path.read_text().splitlines()) < 80
    monkeypatch.setattr(sys, "argv", [str(path), "--steps", "2"])
    runpy.run_path(str(path), run_name="__main__")
    lines = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert lines["regard_softmax"] == "100%"
    assert float(lines["regard_sparsemax"].rstrip("%")) < 90  # two steps from a random start


def test_importing_regard_hf_loads_and_registers_nothing():
    code = "import sys, regard.hf; print('transformers' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install .*\[hf\]"):
        regard.hf.register()
