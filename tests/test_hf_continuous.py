"""Continuous attention in tiny vision transformers: against integrals, grids of any shape, saving, and refusals."""

import copy
import math

import pytest
import torch

pytest.importorskip("transformers")
import transformers
from reference import continuous as reference
from reference import continuous_nn
from transformers import AutoModel

import regard.hf
from regard import continuous as C
from regard.hf._continuous import DENSITIES, attend_grid

regard.hf.register()
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
PICTURES = {"image_size": 24, "patch_size": 8}
# The configuration, and how many tokens come before the patches.
MODELS = {
    "vit": (lambda: transformers.ViTConfig(**SIZES, **PICTURES), 1),
    "deit": (lambda: transformers.DeiTConfig(**SIZES, **PICTURES), 2),
    "dinov2": (lambda: transformers.Dinov2Config(**SIZES, **PICTURES), 1),
    "registers": (lambda: transformers.Dinov2WithRegistersConfig(**SIZES, **PICTURES, num_register_tokens=4), 5),
    "clip": (lambda: transformers.CLIPVisionConfig(**SIZES, **PICTURES), 1),
    "siglip": (lambda: transformers.SiglipVisionConfig(**SIZES, **PICTURES, vision_use_head=False), 0),
}


def make(kind, name, **settings):
    torch.manual_seed(0)
    config = MODELS[kind][0]()
    for key, value in settings.items():
        setattr(config, key, value)
    model = AutoModel.from_config(config, attn_implementation=name).eval()
    with torch.no_grad():
        for part, x in model.named_parameters():
            if any(word in part for word in ("query", "key", "q_proj", "k_proj")):
                x.normal_(std=0.5)
    return model


def by_hand(scores, shape, alpha):
    """The weights (L, L) of one head for its scores, patch by patch and by sums over a fine grid."""
    where, prefix = C.grid(*shape), scores.shape[-1] - shape[0] * shape[1]
    basis = C.GaussianBasis.on_grid(*(max(1, round(0.7 * n)) for n in shape))
    points, area = continuous_nn.fine_points(2, 500)
    psi, each = basis(points), torch.eye(shape[0] * shape[1], dtype=torch.float64)
    coefficients = continuous_nn.ridge_coefficients(each, where, basis, 0.01)
    rows = []
    for s in scores.double():
        p = torch.exp(s - s.max())
        p = p / p.sum()
        mean, variance = reference.moments(p[prefix:], where.points, where.sides)
        if alpha == 1:
            density = reference.normal_pdf(points.numpy(), mean[None].numpy(), variance[None].numpy())[:, 0]
        else:
            sigma = 9 * math.pi * torch.linalg.det(variance).sqrt() * variance
            density = reference.paraboloid_pdf(points.numpy(), mean.numpy(), sigma.numpy())
        expected = torch.from_numpy(density) @ psi * area @ coefficients
        rows.append(torch.cat([p[:prefix], p[prefix:].sum() * expected]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize(("shape", "prefix"), [((3, 3), 1), ((2, 4), 5), ((1, 5), 0)])
def test_weights_are_integrals(name, shape, prefix):
    length = prefix + shape[0] * shape[1]
    q, k, v = (torch.randn(1, 2, length, 4) for _ in range(3))
    bias = torch.randn(1, 2, length, length)
    module = torch.nn.Module().eval()
    module.__dict__["regard_grid"] = shape
    c, p = attend_grid(name, module, q, k, v, bias, scaling=0.7, output_attentions=True)
    for head in range(2):
        expected = by_hand(0.7 * q[0, head] @ k[0, head].mT + bias[0, head], shape, DENSITIES[name]).float()
        torch.testing.assert_close(p[0, head], expected, rtol=0, atol=3e-3)
        torch.testing.assert_close(c[0, :, head], p[0, head] @ v[0, head])


@pytest.mark.parametrize("name", DENSITIES)
def test_gradcheck(name):
    module = torch.nn.Module()
    module.__dict__["regard_grid"] = (2, 3)
    tensors = [torch.randn(1, 1, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda q, k, v: attend_grid(name, module, q, k, v, None)[0], tensors, atol=1e-4)


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_forward_and_backward(kind, name):
    model = make(kind, name)
    out = model(torch.randn(2, 3, 24, 24), output_attentions=True)
    prefix = MODELS[kind][1]
    assert out.attentions[0].shape == (2, 2, prefix + 9, prefix + 9)
    eager = make(kind, "eager")
    eager.load_state_dict(model.state_dict())
    pictures = torch.randn(2, 3, 24, 24)
    first = model(pictures, output_attentions=True).attentions[0]
    discrete = eager(pictures, output_attentions=True).attentions[0]
    torch.testing.assert_close(first[..., :prefix], discrete[..., :prefix], rtol=1e-4, atol=1e-5)
    if prefix:
        assert not torch.allclose(first[..., prefix:], discrete[..., prefix:], atol=1e-2)
    assert regard.hf.check(model).missed == []
    model.train()
    model(pictures).last_hidden_state.square().mean().backward()
    projections = [x for part, x in model.named_parameters() if "query" in part or "q_proj" in part]
    assert len(projections) >= 2
    assert all(x.grad.isfinite().all() and x.grad.abs().max() > 0 for x in projections if x.dim() == 2)


@pytest.mark.parametrize("size", [(16, 40), (40, 16), (8, 24)])
def test_grids_that_are_not_square(size):
    """The grid is that of the picture: a patch sees along rows what the transposed picture has along columns."""
    module = torch.nn.Module()
    shape = (size[0] // 8, size[1] // 8)
    q, k, v = (torch.randn(1, 2, 1 + shape[0] * shape[1], 4) for _ in range(3))

    def flipped(x):
        rest = x[:, :, 1:].unflatten(2, shape).transpose(2, 3).flatten(2, 3)
        return torch.cat([x[:, :, :1], rest], 2)

    module.__dict__["regard_grid"] = shape
    expected = attend_grid("regard_continuous_softmax", module, q, k, v, None)[0]
    module.__dict__["regard_grid"] = shape[::-1]
    got = attend_grid("regard_continuous_softmax", module, *map(flipped, (q, k, v)), None)[0]
    torch.testing.assert_close(got.transpose(1, 2), flipped(expected.transpose(1, 2)), rtol=1e-4, atol=1e-5)
    model = make("vit", "regard_continuous_softmax")
    out = model(torch.randn(1, 3, *size), interpolate_pos_encoding=True, output_attentions=True)
    assert out.attentions[0].shape[-1] == 1 + shape[0] * shape[1]
    assert out.last_hidden_state.isfinite().all()
    # The next picture has its own grid.
    assert model(torch.randn(1, 3, 24, 24)).last_hidden_state.shape[1] == 10


def test_saved_and_loaded(tmp_path):
    model = make("registers", "regard_continuous_sparsemax")
    pictures = torch.randn(2, 3, 24, 24)
    expected = model(pictures).last_hidden_state
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="regard_continuous_sparsemax").eval()
    torch.testing.assert_close(loaded(pictures).last_hidden_state, expected)
    changed = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert not torch.allclose(changed(pictures).last_hidden_state, expected, atol=1e-3)
    changed.set_attn_implementation("regard_continuous_sparsemax")
    torch.testing.assert_close(changed(pictures).last_hidden_state, expected)
    copied = copy.deepcopy(changed)
    small = torch.randn(1, 3, 16, 24)
    copied(small, interpolate_pos_encoding=True) if "interpolate" in str(type(copied).forward) else copied(small)
    torch.testing.assert_close(changed(pictures).last_hidden_state, expected)


def test_scores_far_apart_and_half_precision():
    """All attention on the prefix, all on one patch: finite, whatever the dtype."""
    module = torch.nn.Module()
    module.__dict__["regard_grid"] = (3, 3)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q = torch.randn(1, 1, 10, 4)
        k = torch.randn(1, 1, 10, 4)
        for scaling in (1e4, 1.0, 0.0):
            given = [x.to(dtype).requires_grad_() for x in (q, k, torch.randn(1, 1, 10, 4))]
            c, p = attend_grid(
                "regard_continuous_sparsemax", module, *given, None, scaling=scaling, output_attentions=1
            )
            c.float().square().sum().backward()
            assert c.dtype == p.dtype == dtype
            assert c.isfinite().all()
            assert all(x.grad.isfinite().all() for x in given)


def test_dropout_falls_on_the_weights():
    model = make("vit", "regard_continuous_softmax", attention_probs_dropout_prob=0.5)
    pictures = torch.randn(1, 3, 24, 24)
    assert torch.equal(model(pictures).last_hidden_state, model(pictures).last_hidden_state)
    model.train()
    assert not torch.equal(model(pictures).last_hidden_state, model(pictures).last_hidden_state)


def test_a_tower_of_two():
    text = {**SIZES, "vocab_size": 40, "max_position_embeddings": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config={**SIZES, **PICTURES}, projection_dim=8)
    names = {"vision_config": "regard_continuous_softmax", "text_config": "regard_sparsemax"}
    given = {"input_ids": torch.ones(1, 4, dtype=torch.long), "pixel_values": torch.randn(1, 3, 24, 24)}
    model = AutoModel.from_config(config, attn_implementation=names).eval()
    assert model(**given).logits_per_image.isfinite().all()
    both = AutoModel.from_config(copy.deepcopy(config), attn_implementation="regard_continuous_softmax").eval()
    with pytest.raises(
        ValueError, match=r"^attn_implementation: got 'regard_continuous_softmax' for CLIP\w*, which has"
    ):
        both(**given)


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        (
            lambda: transformers.BertConfig(**SIZES, vocab_size=40),
            {"input_ids": torch.ones(1, 4, dtype=torch.long)},
            "which has no grid, expected an attention over the patches",
        ),
        (
            lambda: transformers.YolosConfig(**SIZES, image_size=[24, 24], patch_size=8, num_detection_tokens=3),
            {"pixel_values": torch.randn(1, 3, 24, 24)},
            "for 13 queries and 13 keys in .*expected self-attention of some prefix tokens and then all 3 x 3 patches",
        ),
    ],
    ids=["words", "tokens after the patches"],
)
def test_what_has_no_grid_is_refused_with_a_remedy(config, given, message):
    model = AutoModel.from_config(config(), attn_implementation="regard_continuous_softmax").eval()
    with pytest.raises(ValueError, match=message) as caught:
        model(**given)
    assert "regard_softmax" in str(caught.value)


def test_masks_that_leave_keys_out_are_refused():
    module = torch.nn.Module()
    module.__dict__["regard_grid"] = (2, 2)
    q = torch.randn(1, 1, 5, 4)
    everything, but_one = torch.ones(1, 1, 5, 5, dtype=torch.bool), torch.ones(1, 1, 5, 5, dtype=torch.bool)
    but_one[..., 3] = False
    whole = attend_grid("regard_continuous_softmax", module, q, q, q, None)[0]
    torch.testing.assert_close(attend_grid("regard_continuous_softmax", module, q, q, q, everything)[0], whole)
    for masks in ({"attention_mask": but_one}, {"attention_mask": None, "is_causal": True}):
        with pytest.raises(ValueError, match="a mask that leaves keys out, expected every patch in every density"):
            attend_grid("regard_continuous_softmax", module, q, q, q, **masks)
    with pytest.raises(NotImplementedError, match=r"^softcap"):
        attend_grid("regard_continuous_softmax", module, q, q, q, None, softcap=3.0)
    with pytest.raises(ValueError, match="for 5 queries and 3 keys"):
        attend_grid("regard_continuous_softmax", module, q, q[:, :, :3], q[:, :, :3], None)
