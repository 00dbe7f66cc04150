"""Names that torch does not promise are used in one file, and what is done without them is right."""

import re
from pathlib import Path

import pytest
import torch

import regard
from regard import _torch

SOURCES = Path(regard.__file__).parent
PRIVATE = re.compile(
    r"(?<!regard\.)\b(torch|nn)(\.\w+)*\._[A-Za-z]\w*|\bfrom torch[\w.]*\._\w+ import"
    r"|\bfrom torch[\w.]* import [^;\n]*\b_[A-Za-z]|\bforward_ad\._\w+"
)


def test_private_names_are_in_one_file():
    found = {
        str(path.relative_to(SOURCES)): match[0]
        for path in SOURCES.rglob("*.py")
        if path.name != "_torch.py" and (match := PRIVATE.search(path.read_text()))
    }
    assert not found


def test_the_pattern_finds_what_it_should():
    private = "torch._C._functorch.x(y)", "torch.autograd._functions", "nn.modules.batchnorm._BatchNorm"
    for text in (*private, "from torch._subclasses import A", "from torch.nn import A, _B"):
        assert PRIVATE.search(text)
    for text in ("torch.__version__", "from regard._torch import x", "from torch.nn import Linear; self._nn"):
        assert not PRIVATE.search(text)


@pytest.fixture
def another_torch(monkeypatch):
    """A release without any of the private names."""
    monkeypatch.setattr(_torch, "_private", lambda *_: None)


@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax, regard.entmax, regard.mean])
def test_attention_without_the_private_names(map_, another_torch, monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 64)
    q, k, v = (torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    c = regard.attend(q, k, v, map=map_)
    gradients = torch.autograd.grad(c.square().sum(), (q, k, v))
    monkeypatch.undo()
    expected = regard.attend(q, k, v, map=map_)
    torch.testing.assert_close(c, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), (q, k, v)))


def test_transforms_without_the_private_names(another_torch):
    s = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(regard.sparsemax)(s), regard.sparsemax(s))
    (jacobian,) = torch.autograd.functional.jacobian(regard.sparsemax, (s[0],))
    torch.testing.assert_close(torch.func.jacrev(regard.sparsemax)(s[0]), jacobian)


def test_each_question_has_an_answer(monkeypatch):
    x = torch.zeros(2)
    assert not any([_torch.in_transform(x), _torch.transforming(), _torch.forward_mode(), _torch.without_values(x)])
    seen = []
    torch.func.vmap(lambda y: seen.append((_torch.in_transform(y), _torch.transforming())) or y)(x)
    assert seen == [(True, True)]
    with torch.autograd.forward_ad.dual_level():
        assert _torch.forward_mode()
    assert _torch.without_values(torch.zeros(2, device="meta"))
    assert not _torch.exporting()


def test_an_optimiser_without_the_private_names(monkeypatch):
    from regard.training import Muon, muon_groups

    ends = []
    for private in (True, False):
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))
        optimiser = Muon(muon_groups(layer), lr=0.01)
        x = torch.randn(8, 6)
        with monkeypatch.context() as patch:
            if not private:
                patch.setattr(_torch, "_private", lambda *_: None)
            for _ in range(3):
                optimiser.zero_grad()
                layer(x).square().sum().backward()
                optimiser.step()
        ends.append([parameter.detach().clone() for parameter in layer.parameters()])
    torch.testing.assert_close(ends[0], ends[1])
