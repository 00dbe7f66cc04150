"""Nothing in a step waits for a device: operations that read values are counted, with Triton and without."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton: pip install triton==3.7.1")

from interpreter import interpreted
from waits import Waits, as_on_a_device

import regard
from regard import gpu, native
from regard.backbones import make_backbone
from regard.swav._model import Swav
from regard.swav._settings import Settings
from regard.vqa.mcan import MCAN
from regard.vqa.settings import ModelSettings


def waits_of(step):
    """What a step waits for, with the kernels and with plain PyTorch, checks as they are on a device; the first of each
    fills caches."""
    names = []
    for kernels in (interpreted(), gpu.kernels_for(None)):
        with as_on_a_device(), kernels, native.switched_off():
            step()
            with Waits() as waits:
                step()
        names += waits.names
    return names


def test_the_counter_sees_what_waits():
    x = torch.tensor([1.0, 0.0])
    with Waits() as waits:
        bool(x.any()), x.nonzero(), x[x > 0], x.sum().item()
    assert len(waits.names) == 4
    with Waits() as waits:
        torch.tensor([1.0])
    assert waits.names == ["aten.lift_fresh"]


def test_the_counter_sees_what_waits_inside_operators():
    """The regions of TVmax come from iterations that end by a certificate: the one map that waits."""
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    assert "aten.nonzero" in waits_of(lambda: regard.attend(q, k, v, map=regard.TVmax(0.1, (2, 3))))


MAPS = {
    "normmax": lambda: regard.Normmax(),
    "budget": lambda: regard.BudgetSparsemax(2.5),
    "steep": lambda: regard.Entmax(3.0),
    "learned": lambda: regard.Entmax(torch.full((2, 1, 1), 1.4)),
    "sinkhorn": lambda: regard.Sinkhorn(),
    "gate": lambda: regard.Gate(),
    "inverse": lambda: regard.Inverse(),
}


@pytest.mark.parametrize("map", MAPS)
def test_attend(map):
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    value = MAPS[map]()
    assert waits_of(lambda: regard.attend(q, k, v, map=value).sum().backward()) == []


@pytest.mark.parametrize("map", ["softmax", "sparsemax", "entmax", regard.Entmax(1.3)])
def test_multihead_attention(map):
    x, padding = torch.randn(2, 10, 16, requires_grad=True), torch.arange(10).expand(2, 10) > 7
    layer = regard.nn.MultiheadAttention(16, 2, batch_first=True, map=map)

    def step():
        layer(x, x, x, key_padding_mask=padding, need_weights=False)[0].sum().backward()

    assert waits_of(step) == []


@pytest.mark.parametrize(
    "attention", ["discrete-softmax", "discrete-sparsemax", "continuous-softmax", "continuous-sparsemax"]
)
def test_a_step_of_answering(attention):
    settings = ModelSettings(width=16, heads=2, layers=1, words=8, attention=attention, map="entmax")
    model = MCAN(settings, vocabulary=12, answers=5, cells=(4, 4), features=6)
    features, words, target = torch.randn(2, 16, 6), torch.randint(1, 12, (2, 7)), torch.rand(2, 5)

    def step():
        torch.nn.functional.binary_cross_entropy_with_logits(model(features, words).scores, target).backward()

    assert waits_of(step) == []


def test_a_step_of_swav():
    """Embeddings, scores, codes, loss, gradients, update: all that follows the cutting of crops."""
    settings = Settings(prototypes=5, dim=8, optimizer="lars")
    task = Swav(make_backbone("small", widths=[4], depths=[1], size=16), settings)
    optimizer = task.optimizer()
    crops = torch.randn(4, 6, 3, 16, 16)

    def step():
        z = torch.stack([task.embed(x) for x in crops])
        scores = task.scores(z)
        code, _ = task._codes(scores, None)
        regard.swav.swapped_loss(scores, code, settings.temperature).backward()
        task.before_update(200)
        optimizer.step()
        optimizer.zero_grad()
        task.after_update(200)

    assert waits_of(step) == []
