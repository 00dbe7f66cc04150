"""What one place of a picture looks at, against the weights of eager attention; windows too."""

import pytest
import torch

pytest.importorskip("transformers")
import transformers

from regard.looking import PatchView, VisionModel, maps_of, measure_weights, region_on_grid

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def vision_model(config):
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, x in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "query", "key")):
                x.normal_(std=0.4)
    return VisionModel.of(model)


@pytest.mark.parametrize("place", [None, (0.8, 0.3)])
def test_scores_and_weights_are_those_of_eager_attention(place):
    model = vision_model(transformers.ViTConfig(**SIZES, image_size=32, patch_size=8))
    picture = torch.randint(256, (3, 40, 50), dtype=torch.uint8)
    with torch.no_grad():
        eager = model.model(model.pixels(picture), output_attentions=True).attentions[1]
    query = 0 if place is None else 1 + 1 * 4 + 3
    expected = eager[0, :, query, 1:].view(4, 4, 4)
    formed = model.view(picture).head_scores(1, place)
    model.model.set_attn_implementation("sdpa")
    lazy = model.view(picture).head_scores(1, place)
    for one in (formed, lazy):
        torch.testing.assert_close(one.weights, expected, atol=1e-5, rtol=1e-4)
        again = one.scores.flatten(1).softmax(-1).view(4, 4, 4)
        torch.testing.assert_close(again, expected / expected.sum((1, 2), keepdim=True), atol=1e-5, rtol=1e-4)


def test_a_place_in_a_shifted_window_sees_its_window_alone():
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2], num_heads=[2], window_size=4
    )
    view = vision_model(config).view(torch.randint(256, (3, 32, 32), dtype=torch.uint8))
    plain, shifted = view.head_scores(0, (0.4, 0.1)), view.head_scores(1, (0.4, 0.4))
    assert plain.scores.shape == (2, 8, 8)
    assert torch.isfinite(plain.scores[:, :4, :4]).all()
    assert torch.isinf(plain.scores[:, 4:]).all()
    assert torch.isfinite(shifted.scores[:, 2:6, 2:6]).all()
    assert torch.isfinite(shifted.scores).sum() == 2 * 16
    for one in (plain, shifted):
        torch.testing.assert_close(one.weights.sum((1, 2)), torch.ones(2))
        assert maps_of(one.scores, 1.5, 0.1)["TVmax 0.1"].sum() == pytest.approx(1.0)


def test_a_picture_of_one_colour_looks_everywhere_alike():
    view = PatchView.of(torch.full((3, 9, 700), 255, dtype=torch.uint8))
    weights = view.head_scores(0, (0.2, 0.2)).weights
    assert weights.std() < 1e-9
    assert measure_weights(weights[0], None).effective == pytest.approx(weights.numel())


def test_an_outline_covers_cells_by_their_share():
    triangle = region_on_grid([(0, 0), (1, 0), (0, 1)], (8, 8))
    assert triangle.mean() == pytest.approx(0.5, abs=0.03)
    assert triangle[0, 0] == 1
    assert triangle[7, 7] == 0
    assert region_on_grid([(0.25, 0), (0.75, 0), (0.75, 1), (0.25, 1)], (1, 2)).tolist() == [[0.5, 0.5]]
