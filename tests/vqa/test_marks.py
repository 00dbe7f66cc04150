"""Places that a question marks, and sums over cells."""

import math

import pytest
import torch
from torch import nn

from regard.vqa.marks import Marks, Sums
from regard.vqa.mcan import MCAN
from regard.vqa.settings import relations, small

PARTS = {"before": 1, "marks": 2, "guided_mixes": False, "sums": True}


def tiny(**changes):
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}
    return MCAN(small(**(sizes | changes)), vocabulary=20, answers=5, cells=(3, 4), features=12).double()


def relative_apart(marks, places):
    """The same, cell by cell and mark by mark."""
    weight = marks.away.weight.detach().unflatten(1, (marks.heads, -1))
    out = torch.zeros(len(places), len(marks.place), len(weight), dtype=places.dtype)
    for b, question in enumerate(places):
        for cell, (x, y) in enumerate(marks.place.tolist()):
            for h, (to_x, to_y) in enumerate(question.tolist()):
                away = [x - to_x, y - to_y]
                angles = [2**k * math.pi / 2 * z for k in range(4) for z in away]
                values = away + [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
                out[b, cell] += weight[:, h] @ torch.tensor(values, dtype=places.dtype)
    return out


def test_where_a_cell_lies_from_marks():
    marks = Marks(6, 3, (3, 4)).double()
    places = torch.rand(2, 3, 2, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(marks.relative(places), relative_apart(marks, places))


def test_gradients_of_marks_and_sums():
    marks, sums = Marks(4, 2, (2, 2)).double(), Sums(4, 3).double()
    x, y = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (4, 3))
    absent = torch.tensor([[False, False, True], [False, True, True]])
    assert torch.autograd.gradcheck(lambda x, y: marks(x, y, absent), (x, y))
    mask = torch.tensor([[True, True, False, True], [True, True, True, True]])
    scores = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, x: sums(s, x, mask), (scores, x))


def test_what_marks_are_reaches_other_cells_only_as_places():
    """Cells that are marked with the same weight are told apart by where they lie alone."""
    marks = Marks(8, 1, (2, 2)).double()
    nn.init.zeros_(marks.query.weight), nn.init.zeros_(marks.query.bias)  # every cell is marked alike
    y, absent = torch.randn(1, 3, 8, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.bool)
    one, other = (marks(torch.randn(1, 4, 8, dtype=torch.float64), y, absent) for _ in range(2))
    torch.testing.assert_close(one, other)


def test_sums_count_what_a_mean_does_not():
    sums = Sums(4, 2).double()
    cell = torch.randn(4, dtype=torch.float64)
    once, twice = (sums(torch.zeros(1, n).double(), cell.expand(1, n, 4)) for n in (1, 2))
    masked = sums(torch.zeros(1, 2).double(), cell.expand(1, 2, 4), torch.tensor([[True, False]]))
    assert not torch.allclose(once, twice)
    torch.testing.assert_close(once, masked)


def test_questions_about_one_picture_together():
    features, words = torch.randn(2, 3, 4, 12).double(), torch.randint(1, 20, (3, 5))
    rows = torch.tensor([1, 0, 1])
    model = tiny(**PARTS).eval()
    together = model(features, words, rows).scores
    apart = torch.cat([model(features[r : r + 1], words[i : i + 1]).scores for i, r in enumerate(rows.tolist())])
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("reads", ["mixed", "own"])
def test_every_parameter_learns(reads):
    model = tiny(**PARTS, reads=reads)
    model(torch.randn(4, 3, 4, 12).double(), torch.randint(1, 20, (4, 5))).scores.square().sum().backward()
    # The bias of queries and the score's last bias move all cells of a softmax alike.
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not [name for name in still if "marks" in name or "sums" in name or "norm1" in name], still


def test_nothing_to_mark():
    words, none = torch.randint(1, 20, (2, 5)), torch.zeros(2, 3, 4, dtype=torch.bool)
    model = tiny(**PARTS).eval()
    one, other = (model(torch.randn(2, 3, 4, 12), words, cell_mask=none).scores for _ in range(2))
    assert one.isfinite().all()
    assert torch.equal(one, other)
    assert model(torch.randn(2, 3, 4, 12), torch.zeros_like(words)).scores.isfinite().all()


def test_marks_need_a_layer():
    with pytest.raises(ValueError, match="marks: got 4, expected 0 without guided layers"):
        small(layers=0, marks=4)


def test_the_preset_of_relations_marks_and_sums_and_mixes_no_cells_once_per_question():
    model = MCAN(relations(), vocabulary=20, answers=5, cells=(3, 4), features=12).eval()
    mixed = []
    scores = model(torch.randn(1, 3, 4, 12), torch.randint(1, 20, (2, 5)), torch.zeros(2).long(), visited=mixed).scores
    assert [layer.layer for layer in mixed] == list(model.before)
    assert model.marks is not None
    assert model.marks.heads == 4
    assert model.flat_picture.sums is not None
    total = model.probabilities(scores).sum(-1)
    torch.testing.assert_close(total, torch.ones(2))
