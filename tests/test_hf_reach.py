"""Models that do not call regard say so: warnings, refusals, `check`, and attentions for whoever asks for them."""

import copy
import functools
import warnings

import pytest
import torch

pytest.importorskip("transformers")
import transformers
from test_hf import CONFIGS, SIZES, WORDS, make, make_inputs
from transformers import AutoModel, AutoModelForCausalLM

import regard.hf

regard.hf.register()
IDS = torch.arange(3, 12)[None]


def bloom(name, auto=AutoModelForCausalLM):
    config = transformers.BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4)
    return auto.from_config(config, attn_implementation=name).eval()


def test_a_model_with_attention_of_its_own_says_so_once_when_it_is_made():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = bloom("regard_sparsemax")
        model(IDS)
        model(IDS)
    said = [str(w.message) for w in said]
    assert len(said) == 1
    assert said[0].startswith(
        "BloomModel does not call regard in 2 modules (BloomAttention). Its attention is computed"
    )
    assert regard.hf.check(model).missed == ["transformer.h.0.self_attention", "transformer.h.1.self_attention"]


@pytest.mark.filterwarnings("ignore:BloomModel does not call regard")
def test_such_a_model_stays_causal_and_has_its_own_numbers():
    ours, eager = bloom("regard_sparsemax"), bloom("eager")
    ours.load_state_dict(eager.state_dict())
    torch.testing.assert_close(ours(IDS).logits, eager(IDS).logits)
    other = IDS.clone()
    other[:, -1] = 20
    torch.testing.assert_close(ours(other).logits[:, :-1], ours(IDS).logits[:, :-1], rtol=0, atol=1e-6)
    padding = torch.ones_like(IDS)
    padding[:, :3] = 0
    other = IDS.clone()
    other[:, :3] = 20
    before, after = (ours(x, attention_mask=padding).logits[:, 3:] for x in (IDS, other))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


def test_a_model_of_which_a_part_calls_regard_names_the_other():
    config = transformers.SiglipVisionConfig(**SIZES, image_size=32, patch_size=8)
    with pytest.warns(UserWarning, match=r"in 1 modules \(MultiheadAttention\). Some of its attention"):
        model = AutoModel.from_config(config, attn_implementation="regard_sparsemax")
    found = regard.hf.check(model)
    assert (len(found.reached), found.missed) == (2, ["head.attention"])


def test_a_model_without_attention_says_so_after_its_first_pass():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
    model = AutoModel.from_config(config, attn_implementation="regard_sparsemax").eval()
    with pytest.warns(UserWarning, match="ResNetModel did not call regard in its first forward pass"):
        model(torch.randn(1, 3, 32, 32))
    model(torch.randn(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (transformers.GPTJConfig(vocab_size=40, n_embd=32, n_layer=1, n_head=4, rotary_dim=4), "'eager'"),
        (
            transformers.FalconConfig(vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
            "'sdpa'",
        ),
        (
            transformers.GPTNeoConfig(
                vocab_size=40, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
            ),
            "'eager'",
        ),
        (transformers.Data2VecVisionConfig(**SIZES, image_size=32, patch_size=8), "'sdpa'"),
        (
            transformers.GitConfig(**SIZES, **WORDS, vision_config={**SIZES, "image_size": 32, "patch_size": 8}),
            "'eager'",
        ),
        (transformers.SamConfig(), "'eager'"),
    ],
    ids=lambda x: getattr(x, "model_type", ""),
)
def test_models_with_classes_of_attention_of_their_own_are_refused_in_words(config, known):
    with pytest.raises(
        ValueError, match=r"^attn_implementation: got 'regard_softmax' for \w+, expected one of"
    ) as error:
        AutoModel.from_config(config, attn_implementation="regard_softmax")
    assert known in str(error.value)


def test_a_class_without_a_type_of_its_own_is_refused_too():
    config = transformers.BarkSemanticConfig(hidden_size=32, num_layers=1, num_heads=4, block_size=16)
    with pytest.raises(ValueError, match=r"^attn_implementation: got 'regard_softmax' for BarkSemanticModel"):
        transformers.BarkSemanticModel._from_config(config, attn_implementation="regard_softmax")


def test_a_model_that_is_changed_later_is_looked_at():
    model = make("bert", "eager")
    assert regard.hf.check(model).reached == []
    model.set_attn_implementation("regard_sparsemax")
    assert len(regard.hf.check(model).reached) == 2
    out = model(**make_inputs("bert"), output_attentions=True)
    assert (out.attentions[0] == 0).any()


def test_a_model_of_parts_is_changed_as_a_whole_or_in_part():
    config = transformers.CLIPConfig(
        text_config={**SIZES, **WORDS}, vision_config={**SIZES, "image_size": 32, "patch_size": 8}
    )
    model = AutoModel.from_config(config, attn_implementation="eager")
    model.set_attn_implementation({"vision_config": "regard_sparsemax"})
    found = regard.hf.check(model)
    assert [name.split(".")[0] for name in found.reached + found.missed] == ["vision_model"] * 2 + ["text_model"] * 2
    model.set_attn_implementation("regard_sparsemax")
    assert len(regard.hf.check(model).reached) == 4


def test_a_model_that_was_changed_hands_on_who_asks():
    eager, _ = asked_models("pix2struct")
    model = copy.deepcopy(eager)
    model.set_attn_implementation("regard_sparsemax")
    out = model(flattened_patches=torch.ones(1, 9, 194), output_attentions=True)
    assert all(p is not None for p in out.attentions)


def test_a_watched_model_can_be_copied_and_kept(tmp_path):
    model = make("bert", "regard_sparsemax")
    torch.save(copy.deepcopy(model), tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    given = make_inputs("bert")
    assert (again(**given).last_hidden_state == model(**given).last_hidden_state).all()


def test_other_attentions_of_transformers_are_left_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("eager", "sdpa"):
            make("bert", name)(**make_inputs("bert"))
        bloom("eager")(IDS)


def test_register_again_wraps_nothing_again():
    method = transformers.PreTrainedModel.get_correct_attn_implementation
    assert regard.hf.register() == regard.hf.register()
    assert transformers.PreTrainedModel.get_correct_attn_implementation is method


ASKED = {
    "gpt2": transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "opt": transformers.OPTConfig(
        vocab_size=40,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    "stablelm": transformers.StableLmConfig(**SIZES, **WORDS, num_key_value_heads=2),
    "siglip": transformers.SiglipTextConfig(**SIZES, **WORDS),
    "yolos": transformers.YolosConfig(**SIZES, image_size=[32, 32], patch_size=8),
    "layoutlm": transformers.LayoutLMConfig(**SIZES, **WORDS),
    "pix2struct": transformers.Pix2StructVisionConfig(
        hidden_size=32,
        d_kv=8,
        d_ff=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        patch_embed_hidden_size=192,
        seq_len=9,
    ),
}


CLASSES = {"pix2struct": transformers.Pix2StructVisionModel, "siglip": transformers.SiglipTextModel}


@functools.cache
def asked_models(kind):
    make_one = CLASSES[kind]._from_config if kind in CLASSES else AutoModel.from_config
    eager, ours = (
        make_one(copy.deepcopy(ASKED[kind]), attn_implementation=name).eval() for name in ("eager", "regard_softmax")
    )
    ours.load_state_dict(eager.state_dict())
    return eager, ours


@pytest.mark.parametrize("kind", ASKED)
def test_attentions_for_whoever_asks(kind):
    eager, ours = asked_models(kind)
    given = {"input_ids": IDS}
    if kind == "yolos":
        given = {"pixel_values": torch.randn(1, 3, 32, 32)}
    elif kind == "pix2struct":
        given = {"flattened_patches": torch.ones(1, 9, 194)}
    expected, got = (model(**given, output_attentions=True).attentions for model in (eager, ours))
    assert len(got) == len(expected) == 2
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert not ours(**given).get("attentions")


def test_a_pass_that_raises_asks_for_nothing_afterwards():
    _, ours = asked_models("pix2struct")
    with pytest.raises(ValueError, match="flattened_patches"):
        ours(None, output_attentions=True)
    ours(flattened_patches=torch.ones(1, 9, 194))
    assert not any("regard_wanted" in m.__dict__ for m in ours.modules())


def test_attentions_by_the_configuration():
    config = CONFIGS["bert"]()
    config.output_attentions = True
    model = AutoModel.from_config(config, attn_implementation="regard_sparsemax")
    assert len(model(**make_inputs("bert")).attentions) == 2
