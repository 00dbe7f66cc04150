"""Codes, loss, queue and warnings, against plain loops and closed forms."""

import math

import pytest
import torch
from reference import swav as reference

from regard.swav import Queue, Watch, codes, measure, swapped_loss


def cosines(views, batch, k, dim=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.normalize(torch.randn(views, batch, dim, generator=g), dim=-1)
    return z @ torch.nn.functional.normalize(torch.randn(k, dim, generator=g), dim=-1).T


def test_codes_without_iterations_are_a_softmax():
    scores = cosines(1, 9, 5)[0]
    code, transport = codes(scores, 0.05, 0, queued=scores[:3])
    torch.testing.assert_close(code, (scores / 0.05).softmax(-1))
    assert transport.iterations == 0
    assert transport.residual > 0.1


@pytest.mark.parametrize("views", [2, 3, 6])
def test_loss_is_the_double_loop(views):
    scores = cosines(views, 5, 7)
    code = torch.rand(2, 5, 7).softmax(-1)
    assert float(swapped_loss(scores, code, 0.1)) == pytest.approx(reference.loss(scores, code, 0.1), rel=1e-5)


def test_loss_of_two_views_is_the_seeds_formula():
    """1/2 (l(z_t, q_s) + l(z_s, q_t)), with one-hot codes: z.c_q / tau - log sum exp."""
    scores, tau = cosines(2, 4, 6).double(), 0.2
    pick = torch.randint(0, 6, (2, 4))
    code = torch.nn.functional.one_hot(pick, 6).double()
    by_hand = sum(
        scores[1 - s, n, pick[s, n]] / tau - (scores[1 - s, n] / tau).logsumexp(0) for s in range(2) for n in range(4)
    )
    assert torch.allclose(swapped_loss(scores, code, tau), -by_hand / 8)


def test_the_gradient_of_the_loss_is_p_minus_q():
    scores = cosines(2, 3, 5).double().requires_grad_()
    code = torch.rand(2, 3, 5).double().softmax(-1)
    swapped_loss(scores, code, 0.3).backward()
    expected = ((scores / 0.3).softmax(-1) - code.flip(0)) / 0.3 / (2 * 3)
    assert torch.allclose(scores.grad, expected.detach())


def test_loss_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="code"):
        swapped_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="code"):
        swapped_loss(torch.zeros(2, 2, 3), torch.zeros(2, 2, 4))
    with pytest.raises(ValueError, match="temperature"):
        swapped_loss(torch.zeros(2, 2, 3), torch.zeros(2, 2, 3), 0.0)


def test_codes_are_the_published_ones():
    scores = cosines(1, 12, 5)[0].requires_grad_()
    code, transport = codes(scores, 0.05, 3)
    assert torch.allclose(code.double(), reference.sinkhorn(scores.detach(), 0.05, 3), atol=1e-5)
    assert not code.requires_grad
    assert transport.iterations == 3


def test_the_queue_takes_part_and_is_left_away():
    scores = cosines(1, 20, 5)[0]
    code, _ = codes(scores[12:], 0.05, 3, queued=scores[:12])
    whole, _ = codes(scores, 0.05, 3)
    assert torch.allclose(code, whole[12:])
    alone, _ = codes(scores[12:], 0.05, 3)
    assert not torch.allclose(code, alone, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("batch", "k", "eps"), [(8, 30, 0.01), (4, 10, 0.05), (4, 10, 0.001), (100, 10, 0.05)])
def test_codes_and_loss_are_never_nan(dtype, batch, k, eps):
    scores = cosines(2, batch, k)
    if batch == 100:  # one picture a hundred times
        scores = scores[:, :1].expand(2, 100, k)
    scores = scores.to(dtype).clone().requires_grad_()
    code = torch.stack([codes(s, eps)[0] for s in scores])
    assert code.isfinite().all()
    assert torch.allclose(code.float().sum(-1), torch.ones(2, batch), atol=1e-2)
    loss = swapped_loss(scores, code, 0.1)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad.isfinite().all()


def test_a_queue_counts_and_forgets():
    queue = Queue(length=5, dim=2)
    rows = torch.arange(24.0).view(2, 6, 2)
    assert not queue.full
    queue.push(rows[:, :3])
    assert not queue.full
    assert torch.equal(queue.rows, rows[:, :3])
    other = Queue(length=5, dim=2)
    other.load(queue.state())
    for q in (queue, other):
        q.push(rows[:, 3:])
        assert q.full
        assert torch.equal(q.rows, rows[:, 1:])
    none = Queue(length=0, dim=2)
    none.push(rows)
    assert not none.full
    assert none.rows.shape[1] == 0


def numbers(**changes):
    return {"loss": 1.0, "used": 1.0, "rank": 30.0, "residual": 0.01} | changes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (numbers(loss=math.log(50)), "ln 50"),
        (numbers(used=0.04), "4 % of the prototypes"),
        (numbers(rank=1.2), "1.2 of 64"),
        (numbers(residual=0.9), "unevenly"),
        (numbers(loss=float("nan")), "not a number"),
    ],
)
def test_collapse_is_said_in_words_once(values, words):
    watch = Watch(prototypes=50, dim=64, patience=5)
    assert watch(values, 4) == []
    assert watch(numbers(), 6) == []
    (said,) = watch(values, 7)
    assert words in said
    assert watch(values, 8) == []
    assert watch(numbers(), 9) == []
    assert len(watch(values, 10)) == 1


def test_a_falling_rank_is_noticed():
    watch = Watch(prototypes=50, dim=64, patience=0)
    assert watch(numbers(rank=40.0), 1) == []
    assert "after 40.0 before" in watch(numbers(rank=12.0), 2)[0]


def test_measures_have_closed_forms():
    k = 4
    code = torch.eye(k).repeat(2, 1).unsqueeze(0)
    z = torch.cat([torch.eye(3), -torch.eye(3), torch.zeros(2, 3)]).unsqueeze(0)
    found = measure(torch.tensor(2.0), code, code, z, torch.tensor([0.5]))
    assert found["loss"] == 2.0
    assert found["code_entropy"] == pytest.approx(0.0, abs=1e-6)
    assert found["shares"] == [1.0] * k
    assert (found["share_least"], found["share_most"], found["used"]) == (1.0, 1.0, 1.0)
    assert found["rank"] == pytest.approx(3.0, rel=1e-4)
    uneven = torch.eye(k)[[0, 0, 0, 1]].unsqueeze(0)
    assert measure(torch.tensor(2.0), uneven, uneven, z[:, :4], torch.tensor([0.5]))["shares"] == [3.0, 1.0, 0.0, 0.0]
    flat = measure(torch.tensor(2.0), code[:, :1], torch.full((1, 1, k), 0.25), z[:, :1], torch.tensor([0.5]))
    assert flat["code_entropy"] == pytest.approx(math.log(4), rel=1e-5)
    assert flat["rank"] <= 1.0
