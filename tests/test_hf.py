"""regard's attentions in tiny random Hugging Face models: with softmax the model's own numbers; masks; generation."""

import copy
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
from regard.nn import Entmax

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
WORDS = {"vocab_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
CONFIGS = {
    "bert": lambda: BertConfig(**SIZES, **WORDS),
    "vit": lambda: ViTConfig(**SIZES, image_size=32, patch_size=8),
    "llama": lambda: LlamaConfig(**SIZES, **WORDS, num_key_value_heads=2, bos_token_id=1, eos_token_id=2),
}
NAMES = regard.hf.register()
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
        c, p = regard.hf._attention(regard.Dot, regard.softmax, module, q, k, v, **how, output_attentions=True)
        expected = torch.softmax(q @ k.mT / 8**0.5 + sum(given.values()), -1)
        torch.testing.assert_close(p, expected)
        torch.testing.assert_close(c, (expected @ v).transpose(1, 2))


def test_scores_that_regard_does_not_know_are_refused():
    config = transformers.Gemma2Config(**SIZES, **WORDS, num_key_value_heads=2, head_dim=8)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="regard_softmax")
    with pytest.raises(NotImplementedError, match=r"^softcap: got float, expected None"):
        model(torch.ones(1, 3, dtype=torch.long))


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


def test_alphas_made_too_late_to_be_trained_say_so():
    model = make("vit", "regard_entmax")
    model(**make_inputs("vit"))
    assert sum(isinstance(m, Entmax) for m in model.modules()) == 2
    model = make("vit", "regard_entmax").train()
    with pytest.warns(UserWarning, match="Call regard.hf.learn_alpha"):
        model(**make_inputs("vit"))


def test_learn_alpha_needs_attentions():
    with pytest.raises(ValueError, match=r"^model: got Linear, expected a transformers model"):
        regard.hf.learn_alpha(torch.nn.Linear(2, 2))


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
    with pytest.raises(ImportError, match=r"pip install 'regard\[hf\]'"):
        regard.hf.register()
