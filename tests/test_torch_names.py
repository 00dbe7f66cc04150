"""Names that torch does not promise are used in one file, and what is done without them is right."""

import re
from pathlib import Path

import pytest
import torch

import regard
from regard import _torch

SOURCES = Path(regard.__file__).parent
PRIVATE = re.compile(r"\btorch(\.\w+)*\._[a-z]\w*|\bfrom torch(\.\w+)*\._\w+ import|\bforward_ad\._\w+")


def test_private_names_are_in_one_file():
    found = {
        str(path.relative_to(SOURCES)): match[0]
        for path in SOURCES.rglob("*.py")
        if path.name != "_torch.py" and (match := PRIVATE.search(path.read_text()))
    }
    assert not found


def test_the_pattern_finds_what_it_should():
    for text in ("torch._C._functorch.x(y)", "torch.autograd._functions", "from torch._subclasses import A"):
        assert PRIVATE.search(text)
    assert not PRIVATE.search("torch.__version__ from regard._torch import x")


@pytest.fixture
def another_torch(monkeypatch):
    """A release without any of the private names."""
    monkeypatch.setattr(_torch, "_private", lambda *_: None)


@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax, regard.entmax, regard.mean])
def test_attention_without_the_private_names(map_, another_torch, monkeypatch):
    monkeypatch.setattr("regard._attend.BUDGET", 64)
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
    assert not (_torch.in_transform(x) or _torch.transforming() or _torch.forward_mode() or _torch.without_values(x))
    seen = []
    torch.func.vmap(lambda y: seen.append((_torch.in_transform(y), _torch.transforming())) or y)(x)
    assert seen == [(True, True)]
    with torch.autograd.forward_ad.dual_level():
        assert _torch.forward_mode()
    assert _torch.without_values(torch.zeros(2, device="meta"))
    assert not _torch.exporting()
