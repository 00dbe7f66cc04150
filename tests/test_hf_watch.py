"""`regard.hf.watch` on a tiny random model of each family: outputs unchanged, summaries those of eager attention."""

import contextlib
import copy

import pytest
import reference.summaries as obvious
import torch

pytest.importorskip("transformers")
import transformers
from torch import nn
from transformers import AttentionInterface, AutoModel, AutoModelForCausalLM

import regard
import regard.hf
from regard.hf import Tokens, watch
from regard.hf._tokens import Span, Windows

regard.hf.register()
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
WORDS = {"vocab_size": 40, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PATCHES = {"image_size": 32, "patch_size": 8}
LLAMA = {**SIZES, **WORDS, "num_key_value_heads": 2}
DINO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **PATCHES}


def pictures(batch=2, height=32, width=32):
    return torch.randn(batch, 3, height, width)


def words(length=9):
    return torch.randint(3, 40, (2, length))


def llava():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SIZES, **PATCHES),
        text_config=transformers.LlamaConfig(**LLAMA),
        image_token_index=39,
        vision_feature_layer=-1,
    )
    ids = words(24).clamp(max=38)
    ids[:, 2:18] = 39
    return transformers.LlavaForConditionalGeneration, config, {"input_ids": ids, "pixel_values": pictures()}


def qwen2_vl():
    config = transformers.Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4},
        text_config={
            **LLAMA,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
        },
        image_token_id=39,
        video_token_id=38,
        vision_start_token_id=37,
        vision_end_token_id=36,
    )
    ids = words(12).clamp(max=35)
    ids[0, 1:7], ids[1, 3:5] = 39, 39
    grids = torch.tensor([[1, 4, 6], [1, 2, 4]])  # patches; four of them are one token
    return (
        transformers.Qwen2VLForConditionalGeneration,
        config,
        {
            "input_ids": ids,
            "pixel_values": torch.randn(32, 3 * 2 * 4 * 4),
            "image_grid_thw": grids,
            "mm_token_type_ids": (ids == 39).int(),
        },
    )


def qwen2_5_vl():
    _, config, given = qwen2_vl()
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4}
    config = transformers.Qwen2_5_VLConfig(
        vision_config={**vision, "window_size": 16, "fullatt_block_indexes": [1], "out_hidden_size": 32},
        text_config={**LLAMA, "rope_parameters": config.text_config.rope_parameters},
        image_token_id=39,
        video_token_id=38,
        vision_start_token_id=37,
        vision_end_token_id=36,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration, config, given


def qwen3_vl():
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 4, "patch_size": 4}
    _, config, given = qwen2_vl()
    config = transformers.Qwen3VLConfig(
        vision_config={**vision, "out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
        text_config={**LLAMA, "head_dim": 8, "rope_parameters": config.text_config.rope_parameters},
        image_token_id=39,
        video_token_id=38,
        vision_start_token_id=37,
        vision_end_token_id=36,
    )
    return transformers.Qwen3VLForConditionalGeneration, config, given


def clip():
    config = transformers.CLIPConfig(text_config={**SIZES, **WORDS}, vision_config={**SIZES, **PATCHES})
    return AutoModel, config, {"input_ids": words(), "pixel_values": pictures()}


def siglip():
    config = transformers.SiglipConfig(text_config={**SIZES, **WORDS}, vision_config={**SIZES, **PATCHES})
    return AutoModel, config, {"input_ids": words(), "pixel_values": pictures()}


def swin():
    config = transformers.SwinConfig(
        image_size=(48, 64), patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=5
    )
    return AutoModel, config, {"pixel_values": pictures(height=48, width=64)}


def padded_words():
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    return {"input_ids": words(), "attention_mask": mask}


WIDE = {"pixel_values": pictures(height=32, width=48)}
FAMILIES = {
    "vit": lambda: (
        transformers.AutoModelForImageClassification,
        transformers.ViTConfig(**SIZES, **PATCHES),
        {**WIDE, "interpolate_pos_encoding": True},
    ),
    "deit": lambda: (AutoModel, transformers.DeiTConfig(**SIZES, **PATCHES), {"pixel_values": pictures()}),
    "dinov2": lambda: (AutoModel, transformers.Dinov2Config(**DINO), WIDE),
    "dinov2_with_registers": lambda: (
        AutoModel,
        transformers.Dinov2WithRegistersConfig(**DINO, num_register_tokens=3),
        WIDE,
    ),
    "dinov3_vit": lambda: (AutoModel, transformers.DINOv3ViTConfig(**SIZES, **PATCHES, num_register_tokens=2), WIDE),
    "clip": clip,
    "siglip": siglip,
    "beit": lambda: (
        AutoModel,
        transformers.BeitConfig(**SIZES, **PATCHES, use_relative_position_bias=True),
        {"pixel_values": pictures()},
    ),
    "swin": swin,
    "vit_msn": lambda: (AutoModel, transformers.ViTMSNConfig(**SIZES, **PATCHES), {"pixel_values": pictures()}),
    "ijepa": lambda: (AutoModel, transformers.IJepaConfig(**SIZES, **PATCHES), {"pixel_values": pictures()}),
    "bert": lambda: (AutoModel, transformers.BertConfig(**SIZES, **WORDS), {"input_ids": words()}),
    "bert, padded": lambda: (AutoModel, transformers.BertConfig(**SIZES, **WORDS), padded_words()),
    "llama": lambda: (AutoModelForCausalLM, transformers.LlamaConfig(**LLAMA), {"input_ids": words()}),
    "llama, padded": lambda: (AutoModelForCausalLM, transformers.LlamaConfig(**LLAMA), padded_words()),
    "mistral": lambda: (
        AutoModelForCausalLM,
        transformers.MistralConfig(**LLAMA, sliding_window=4),
        {"input_ids": words()},
    ),
    "llava": llava,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
}
FIRST = {  # the kinds of the tokens that the first attention sees, and its grid
    "vit": (("cls", "patch"), (4, 6)),
    "deit": (("cls", "distillation", "patch"), (4, 4)),
    "dinov2": (("cls", "patch"), (4, 6)),
    "dinov2_with_registers": (("cls", "register", "patch"), (4, 6)),
    "dinov3_vit": (("cls", "register", "patch"), (4, 6)),
    "clip": (("cls", "patch"), (4, 4)),
    "siglip": (("patch",), (4, 4)),
    "beit": (("cls", "patch"), (4, 4)),
    "swin": (("patch",), (12, 16)),
    "vit_msn": (("cls", "patch"), (4, 4)),
    "ijepa": (("patch",), (4, 4)),
    "bert": (("text",), None),
    "llama": (("text",), None),
    "mistral": (("text",), None),
    "llava": (("cls", "patch"), (4, 4)),
    "qwen2_vl": (("patch",), (4, 6)),
    "qwen2_5_vl": (("patch",), (4, 6)),
    "qwen3_vl": (("patch",), (4, 6)),
}


def make(family, implementation, like=None):
    """A model, far from uniform attention, and its inputs."""
    torch.manual_seed(3)
    auto, config, given = FAMILIES[family]()
    build = auto.from_config if hasattr(auto, "from_config") else auto._from_config
    model = build(copy.deepcopy(config), attn_implementation=implementation).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if any(part in name for part in ("query", "key", "q_proj", "k_proj", "qkv", "in_proj_weight")):
                x.normal_(std=0.3)
            if "relative_position_bias_table" in name:
                x.normal_()
    if like is not None:
        model.load_state_dict(like.state_dict())
    return model, given


def tensors(out):
    """All tensors of an output, in order."""
    for x in out.values() if isinstance(out, dict) else out:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, tuple | list | dict):
            yield from tensors(x)


def same(first, second):
    pairs = list(zip(tensors(first), tensors(second), strict=True))
    return bool(pairs) and all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in pairs)


@contextlib.contextmanager
def eager_weights(model):
    """What every eager function of a modelling file returns as its weights, in the order of the calls."""
    seen, original = [], AttentionInterface.get_interface

    def get_interface(self, name, default):
        def function(*args, **kwargs):
            out = default(*args, **kwargs)
            seen.append(out[1])
            return out

        return function

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):  # the pooling head of SigLIP
            hooks.append(
                module.register_forward_hook(
                    lambda m, args, out: seen.append(
                        nn.functional.multi_head_attention_forward(
                            *(x.transpose(0, 1) for x in args[:3]),
                            m.embed_dim,
                            m.num_heads,
                            m.in_proj_weight,
                            m.in_proj_bias,
                            None,
                            None,
                            False,
                            0.0,
                            m.out_proj.weight,
                            m.out_proj.bias,
                            average_attn_weights=False,
                        )[1]
                    )
                )
            )
    AttentionInterface.get_interface = get_interface
    try:
        yield seen
    finally:
        AttentionInterface.get_interface = original
        for hook in hooks:
            hook.remove()


@pytest.mark.filterwarnings("ignore:.*does not call regard in 1 modules .MultiheadAttention")
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "regard_softmax"])
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_unchanged_and_summaries_are_those_of_eager_attention(family, implementation):
    model, given = make(family, implementation)
    before = model(**given)
    with watch(model, top=3, rows=[0]) as seen:
        during = model(**given)
    assert same(before, during)
    assert same(before, model(**given))
    eager, _ = make(family, "eager", like=model)
    with eager_weights(eager) as expected:
        eager(**given)
    assert len(seen) == len(expected) > 0
    for one, p in zip(seen, expected, strict=True):
        padded = given.get("attention_mask")
        real = slice(None) if padded is None else padded.bool()  # eager attention gives padded queries equal weights
        summary = one.summary

        def rows(x, y, real=real):
            torch.testing.assert_close(
                x.transpose(1, 2)[real].float(), y.transpose(1, 2)[real].float(), rtol=0, atol=1e-5
            )

        rows(summary.entropy, obvious.entropy(p))
        rows(summary.top_weights, obvious.top(p, summary.top_weights.shape[-1]))
        if padded is None:
            torch.testing.assert_close(summary.received, p.sum(-2), rtol=0, atol=1e-5)
            torch.testing.assert_close(summary.rows, p[:, :, :1], rtol=0, atol=1e-5)
        assert one.tokens.length == p.shape[-1]


@pytest.mark.parametrize("family", FIRST)
def test_it_knows_the_tokens(family):
    model, given = make(family, "sdpa")
    with watch(model, want=["received"]) as seen:
        model(**given)
    kinds, grid = FIRST[family]
    assert seen[0].tokens.kinds == kinds
    assert seen[0].tokens.grid == grid
    assert [layer[0].layer for layer in seen.layers] == list(range(len(seen.layers)))
    assert len({one.name for one in seen}) == len(seen.layers)
    if grid is not None:
        assert seen[0].pictures().shape == (
            len(seen[0].summary.received) if family.endswith("_vl") else 2,
            *(seen[0].summary.received.shape[1:2]),
            *grid,
        )


@pytest.mark.parametrize("name", ["regard_sparsemax", "regard_entmax15", "regard_entmax", "regard_w2"])
@pytest.mark.parametrize("family", ["vit", "llama"])
def test_the_maps_of_regard(family, name):
    model, given = make(family, name)
    expected = model(**given, output_attentions=True).attentions
    with watch(model) as seen:
        model(**given)
    for one, p in zip(seen, expected, strict=True):
        torch.testing.assert_close(one.summary.received, p.sum(-2), rtol=0, atol=1e-5)
        torch.testing.assert_close(one.summary.entropy.double(), obvious.entropy(p), rtol=0, atol=1e-5)
        assert (one.summary.support == obvious.support(p)).float().mean() > 0.99


def test_learned_alphas_and_densities():
    model, given = make("vit", "regard_entmax")
    regard.hf.learn_alpha(model, 1.8)
    expected = model(**given, output_attentions=True).attentions
    with watch(model) as seen:
        model(**given)
    torch.testing.assert_close(seen[1].summary.received, expected[1].sum(-2), rtol=0, atol=1e-5)
    model, given = make("vit", "regard_continuous_softmax")
    before = model(**given, output_attentions=True)
    with watch(model, want=["received"]) as seen:
        during = model(**given)
    assert during.attentions is None
    assert torch.equal(before.logits, during.logits)
    torch.testing.assert_close(seen[0].summary.received, before.attentions[0].sum(-2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "regard_softmax"])
@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}, {"use_cache": False}])
def test_generation_with_a_cache(cache, implementation):
    model, given = make("llama", implementation)
    how = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    before = model.generate(**given, **how, **cache)
    with watch(model, rows=[-1]) as seen:
        during = model.generate(**given, **how, **cache)
    assert all(torch.equal(x, y) for x, y in zip(before.logits, during.logits, strict=True))
    assert [len(calls) for calls in seen.layers] == [4, 4]
    whole, _ = make("llama", "eager", like=model)
    p = whole(before.sequences[:, :-1], output_attentions=True).attentions
    for layer in (0, 1):
        last = seen.layers[layer][-1]
        row = last.summary.rows[:, :, -1]
        torch.testing.assert_close(row[..., : p[layer].shape[-1]], p[layer][:, :, -1], rtol=0, atol=1e-5)
        assert (row[..., p[layer].shape[-1] :] == 0).all()
        torch.testing.assert_close(
            last.summary.entropy[..., -1].double(), obvious.entropy(p[layer][:, :, -1]), rtol=0, atol=1e-5
        )


def test_pictures_in_text():
    model, given = make("llava", "sdpa")
    how = {"max_new_tokens": 2, "do_sample": False}
    with watch(model, rows=[-1]) as seen:
        model.generate(**given, **how)
    first, last = ([one for one in seen if "language_model" in one.name][i] for i in (0, -1))
    assert first.tokens.spans == (Span("text", 0, 2), Span("image", 2, 18, (4, 4)), Span("text", 18, 24))
    assert last.tokens.spans == (Span("text", 0, 2), Span("image", 2, 18, (4, 4)), Span("text", 18, 25))
    assert last.summary.rows.shape == (2, 4, 1, 25)
    torch.testing.assert_close(last.pictures(last.summary.rows), last.summary.rows[..., 2:18].unflatten(-1, (4, 4)))


def test_pictures_in_text_with_the_class_token_of_their_tower():
    model, given = make("llava", "sdpa")
    model.config.vision_feature_select_strategy = "full"
    given["input_ids"][:, 18] = 39
    with watch(model, rows=[-1]) as seen:
        model(**given)
    one = seen[-1]
    picture = (Span("image", 2, 3), Span("image", 3, 19, (4, 4)))
    assert one.tokens.spans == (Span("text", 0, 2), *picture, Span("text", 19, 24))
    torch.testing.assert_close(one.pictures(one.summary.rows), one.summary.rows[..., 3:19].unflatten(-1, (4, 4)))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_pictures_of_several_sizes_in_text(family):
    model, given = make(family, "sdpa")
    with watch(model) as seen:
        model(**given)
    towers, text = ([one for one in seen if ("visual" in one.name) == vision] for vision in (True, False))
    assert [one.tokens.grid for one in towers] == [(4, 6), (2, 4)] * 2
    assert [tokens.grid for tokens in text[0].all_tokens] == [(2, 3), (1, 2)]
    assert text[0].all_tokens[1].spans == (Span("text", 0, 3), Span("image", 3, 5, (1, 2)), Span("text", 5, 12))
    assert text[0].pictures(sample=1).shape == (4, 1, 2)
    with pytest.raises(ValueError, match=r"^sample: got None, expected one of the samples"):
        text[0].pictures()
    # The patches of the tower come in squares of two by two: numbered in the order of reading, these are they.
    order = torch.tensor([0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23])
    assert (towers[0].tokens.pictures(order) == torch.arange(24).reshape(4, 6)).all()


def test_windows_of_qwen_are_those_of_the_model():
    """Windows of two by two squares of four patches: the picture of 4 x 6 has two, and one of them is narrower."""
    from transformers.vision_utils import get_vision_window_index

    model, given = make("qwen2_5_vl", "sdpa")
    with watch(model) as seen:
        model(**given)
    windows, whole = ([one for one in seen if f"blocks.{layer}." in one.name] for layer in (0, 1))
    assert [one.tokens.grid for one in windows] == [(4, 6), (4, 6), (2, 4)]
    assert [one.tokens.length for one in windows] == [16, 8, 8]
    assert [one.tokens.grid for one in whole] == [(4, 6), (2, 4)]
    # Numbers of the patches, in the order in which the model is given them: squares of two by two, row by row.
    squares = Tokens((Span("patch", 0, 24, (4, 6), 2),)).spans[0].order()
    index, ends = get_vision_window_index(given["image_grid_thw"][:1], 2, 16, 4)
    expected = squares.reshape(6, 4)[index].flatten()
    assert whole[0].tokens.spans[0].order().tolist() == expected.tolist()
    assert windows[1].tokens.spans[0].order().tolist() == expected[ends[1] : ends[2]].tolist()
    drawn = windows[1].pictures(torch.ones(1, 8))[0]
    assert (drawn[:, 4:] == 1).all()
    assert (drawn[:, :4] == 0).all()
    left = torch.zeros(1, 4, 6)
    left[..., :5] = 1
    assert windows[1].tokens.shares(left).tolist() == [[1.0, 0.0] * 4]


def test_windows_are_where_the_picture_is():
    """A picture whose one patch is bright: its value comes back to its place, whatever window and shift."""
    for side, shift in ((2, 0), (2, 1), (5, 2), (4, 3)):
        windows = Windows((6, 7), side, shift)
        x = torch.arange(42.0).reshape(1, 6, 7)
        cut = windows.cut(x)
        assert cut.shape == (windows.count, 1, side**2)
        assert (windows.joined(cut) == x).all()


def test_windows_of_swin_are_those_of_the_model():
    """The mass that a patch receives, against eager weights put back by the model's own functions."""
    from transformers.models.swin.modeling_swin import window_reverse

    model, given = make("swin", "eager")
    with watch(model, keep=True) as seen:
        model(**given)
    layers = [module for module in model.modules() if type(module).__name__ == "SwinLayer"]
    for one, layer in zip(seen, layers, strict=True):
        height, width = one.tokens.grid
        side = layer.window_size
        values = one.weights.sum(-2).transpose(1, 2).unflatten(1, (side, side))
        padded = (-(-height // side) * side, -(-width // side) * side)
        back = layer.cyclic_shift(window_reverse(values, side, *padded), reverse=True)[:, :height, :width]
        torch.testing.assert_close(one.pictures(one.summary.received), back.permute(0, 3, 1, 2))
    assert {int(layer.shift_size) for layer in layers} == {0, 2}


@pytest.mark.parametrize("family", ["vit", "swin", "llava", "qwen2_vl"])
def test_mass_in_regions_of_the_picture(family):
    model, given = make(family, "sdpa")
    left = torch.zeros(1, 24, 24, dtype=torch.bool)
    left[..., :12] = True
    regions = torch.cat([left, ~left, torch.ones_like(left)])
    with watch(model, regions=regions, keep=True) as seen:
        model(**given)
    for one in seen:
        mass = one.summary.regions
        if one.tokens.grid is None:
            assert mass is None
            continue
        torch.testing.assert_close(mass[..., 0] + mass[..., 1], mass[..., 2])
        if one.tokens.windows is None and one.tokens.grid[1] % 2 == 0:
            half = torch.zeros(one.tokens.grid)
            half[:, : one.tokens.grid[1] // 2] = 1
            p = one.weights.rows(range(one.weights.shape[-2]))
            expected = (one.tokens.pictures(p[:1]) * half).sum((-2, -1))
            torch.testing.assert_close(mass[:1, ..., 0], expected)


def test_rollout_of_a_model():
    model, given = make("vit", "sdpa")
    eager, _ = make("vit", "eager", like=model)
    with watch(model, keep=True) as seen:
        model(**given)
    expected = obvious.rollout(list(eager(**given, output_attentions=True).attentions))[:, :1]
    torch.testing.assert_close(seen.rollout([0]), expected, rtol=0, atol=1e-5)
    whole = [p[1] for p in eager(**given, output_attentions=True).attentions]
    assert float(seen.flow([0], [3]).high[1]) == pytest.approx(obvious.flow(whole, 0, 3), abs=1e-5)
    with watch(eager, keep=True) as seen:
        eager(**given)
    torch.testing.assert_close(seen.rollout([0]), expected, rtol=0, atol=1e-5)
    with watch(model) as seen:
        model(**given)
    with pytest.raises(ValueError, match=r"keep=True"):
        seen.rollout([0])


def test_rows_of_a_kind_of_token():
    model, given = make("dinov2_with_registers", "sdpa")
    with watch(model, rows="register") as seen:
        model(**given)
    assert seen[0].summary.rows.shape[2] == 3
    model, given = make("siglip", "sdpa")
    with watch(model, rows="cls", layers="vision") as seen:
        model(**given)
    assert [one.summary.rows is None for one in seen] == [True, True, False]
    assert seen[-1].name == "vision_model.head.attention"
    assert seen[-1].pictures(seen[-1].summary.rows).shape == (2, 4, 1, 4, 4)


def test_layers_are_chosen_by_name():
    model, given = make("clip", "sdpa")
    with watch(model, layers="vision.*1") as seen:
        model(**given)
    assert [one.name for one in seen] == [name for name, _ in model.named_modules() if name == seen[0].name]
    with pytest.raises(ValueError, match=r"^model: got CLIPModel, expected attentions whose names match 'xyz'"):
        watch(model, layers="xyz")


def test_a_table_has_a_row_for_each_layer_and_head():
    model, given = make("vit", "sdpa")
    with watch(model) as seen:
        model(**given)
    table = seen.table()
    assert [(row["layer"], row["head"]) for row in table] == [(i, h) for i in range(2) for h in range(4)]
    assert table[5]["entropy"] == pytest.approx(float(seen[1].summary.entropy[0, 1].mean()))
    assert 1 <= table[0]["effective"] <= table[0]["support"] <= table[0]["of"] == 25


def test_nothing_is_left_behind():
    model, given = make("vit", "sdpa")
    original = AttentionInterface.get_interface
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with watch(model) as outer:
        with watch(model, layers="0") as inner:
            model(**given)
        model(**given)
    assert (len(outer), len(inner)) == (4, 1)
    with pytest.raises(RuntimeError), watch(model):
        raise RuntimeError
    assert AttentionInterface.get_interface is original
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_one_watch_has_one_block_at_a_time():
    model, given = make("vit", "sdpa")
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
    again = watch(model)
    with again as seen:
        with pytest.raises(ValueError, match=r"^watch: got the same one, inside its block"), again:
            pass
        model(**given)
    with again as later:
        model(**given)
    assert len(seen) == len(later) == 2
    assert hooks == sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_a_block_in_which_nothing_was_seen_ends_with_a_warning():
    """Above all a compiled model, whose attentions nobody can see."""
    model, given = make("vit", "sdpa")
    compiled = torch.compile(model, backend="eager")
    said = r"no attention of ViTFor.*inside torch\.compile"
    with torch.no_grad(), pytest.warns(UserWarning, match=said), watch(model) as seen:
        compiled(**given)
    assert not seen
    with pytest.raises(RuntimeError), watch(model):
        raise RuntimeError  # which says enough


def test_only_the_watched_model_is_seen_and_gradients_still_flow():
    model, given = make("vit", "sdpa")
    other, _ = make("vit", "sdpa")
    with watch(model) as seen:
        other(**given)
        model(**given).logits.sum().backward()
    assert len(seen) == 2
    assert not seen[0].summary.entropy.requires_grad
    grads = {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}
    model.zero_grad()
    model(**given).logits.sum().backward()
    assert grads
    assert all(torch.equal(x.grad, grads[name]) for name, x in model.named_parameters() if x.grad is not None)


def test_a_model_that_it_does_not_know_says_what_is_missing():
    config = transformers.YolosConfig(**SIZES, image_size=[32, 32], patch_size=8, num_detection_tokens=2)
    model = AutoModel.from_config(config).eval()
    with pytest.raises(ValueError, match=r"^model: got 'yolos', whose tokens are not known.*Tokens.picture\(\(height"):
        watch(model)
    tokens = Tokens((*Tokens.picture((4, 4), prefix=("cls",)).spans, Span("detection", 17, 19)))
    with watch(model, tokens=tokens) as seen:
        model(pictures())
    assert seen[0].tokens.kinds == ("cls", "patch", "detection")
    assert seen[0].pictures().shape == (2, 4, 4, 4)
    with watch(model, tokens=Tokens.text) as seen:
        model(pictures())
    assert seen[0].tokens.length == 19
    with (
        pytest.raises(ValueError, match=r"^tokens: got 17 tokens, expected the 19 keys"),
        watch(model, tokens={"encoder": Tokens.picture((4, 4), prefix=1)}),
    ):
        model(pictures())


class OwnAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)


class OwnModel(transformers.PreTrainedModel):
    config_class = transformers.BertConfig

    def __init__(self, config):
        super().__init__(config)
        self.first = OwnAttention()

    def forward(self, x):
        return self.first(x)


def test_attention_code_of_a_models_own():
    model, x = OwnModel(transformers.BertConfig()), torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match=r'1 attentions with code of their own: OwnAttention.*read=\{"OwnAttention"'):
        watch(model)

    def read(module, args, kwargs):
        q, k = (part(args[0]).unsqueeze(1) for part in (module.q, module.k))
        return regard.LazyWeights(q, k, regard.Dot(1.0))

    with watch(model, read={"OwnAttention": read}) as seen:
        model(x)
    expected = torch.softmax(model.first.q(x) @ model.first.k(x).mT, -1)
    torch.testing.assert_close(seen[0].summary.received[:, 0], expected.sum(-2))


def test_arguments():
    model, _ = make("vit", "sdpa")
    with pytest.raises(TypeError, match=r"^model: got str, expected a model of transformers"):
        watch("google/vit-base")
    with pytest.raises(ValueError, match=r"^regions: got torch.float32 of shape \(2, 2\)"):
        watch(model, regions=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"^spans: got Span\(kind='text', start=1"):
        Tokens((Span("text", 1, 3),))


@pytest.mark.parametrize("implementation", ["eager", "regard_softmax"])
def test_soft_caps(implementation):
    """Under eager attention what only the model's own attention knows is in the weights that it forms."""
    config = transformers.Gemma2Config(**LLAMA, head_dim=8, attn_logit_softcapping=0.5)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    ids = words()
    p = model(ids, output_attentions=True).attentions
    with watch(model) as seen:
        model(ids)
    torch.testing.assert_close(seen[1].summary.received, p[1].sum(-2))


def test_the_square_is_never_in_memory(monkeypatch):
    from attention.test_summaries import Largest

    from regard.attention import query_blocks

    monkeypatch.setattr(query_blocks, "BUDGET", 1 << 12)
    model = AutoModel.from_config(transformers.ViTConfig(**{**SIZES, "num_attention_heads": 1}, **PATCHES)).eval()
    with torch.no_grad(), Largest() as largest, watch(model, rows="cls", top=2):
        model(pictures(1, 160, 160), interpolate_pos_encoding=True)
    assert largest.entries < 401**2
