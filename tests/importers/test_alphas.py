"""Alphas that were learned with the entmax package, in the layouts of adaptively sparse transformers."""

import entmax
import pytest
import torch
from torch import nn

import regard
from regard.importers import entmax_alphas


class Sparse(nn.Module):
    """An attention map whose heads learn their alphas by the package, as adaptively sparse transformers do."""

    def __init__(self, heads):
        super().__init__()
        self.pre_alpha = nn.Parameter(2 * torch.randn(heads))

    def forward(self, s):
        alpha = torch.clamp(1 + torch.sigmoid(self.pre_alpha), 1.01, 2)
        return entmax.entmax_bisect(s, alpha[:, None, None].expand(*s.shape[:-1], 1))


def test_the_same_weights_from_the_free_parameter(tmp_path):
    model = nn.ModuleDict({"self": Sparse(4), "cross": Sparse(3)})
    with torch.no_grad():
        model["self"].pre_alpha[:2] = torch.tensor([-9.0, 9.0])  # where they are clamped
    torch.save(nn.ModuleDict({"decoder": model}).state_dict(), tmp_path / "model.pth")
    found = entmax_alphas(torch.load(tmp_path / "model.pth", weights_only=True))
    assert sorted(found) == ["decoder.cross", "decoder.self"]
    for name, heads in (("self", 4), ("cross", 3)):
        map_ = found[f"decoder.{name}"]
        assert isinstance(map_, regard.nn.Entmax)
        s = torch.randn(2, heads, 5, 7)
        torch.testing.assert_close(map_(s), model[name](s), rtol=0, atol=1e-5)
    assert found["decoder.self"].alpha.min().item() == pytest.approx(1.01, abs=1e-6)
    found["decoder.self"](torch.randn(2, 4, 5, 7)).square().sum().backward()
    assert found["decoder.self"].free.grad.abs().sum() > 0


def test_alpha_itself_in_any_shape():
    alpha = torch.tensor([1.2, 1.5, 2.0, 40.0])
    for shape in ((4,), (1, 4, 1, 1)):
        found = entmax_alphas({"attn.softmax.alpha_chooser": alpha.reshape(shape), "attn.weight": torch.eye(3)})
        torch.testing.assert_close(found["attn.softmax"].alpha.flatten(), alpha)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"attn.weight": torch.eye(3)}, "^state: got no alphas, expected names that end in pre_alpha"),
        ({"a.alpha_chooser": torch.tensor([1.0, 1.5])}, "^state: got a.alpha_chooser .* expected one alpha above 1"),
        ({"a.pre_alpha": torch.zeros(2, 3)}, r"^state: got a.pre_alpha of shape \(2, 3\)"),
    ],
)
def test_what_does_not_fit_is_named(state, message):
    with pytest.raises(ValueError, match=message):
        entmax_alphas(state)
