"""The kernel for summaries of softmax attention, against weights that are all in memory, at the edges of its domain."""

import pytest
import reference.summaries as obvious
import torch

import regard
from regard import native
from regard.attention import query_blocks

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native kernels here")


@pytest.fixture
def calls(monkeypatch):
    """How often the kernel was called."""
    seen, call = [], native.call
    monkeypatch.setattr(native, "call", lambda name, *rest: (seen.append(name), call(name, *rest))[1])
    return seen


def weights_of(q, k, causal):
    s = (q.double() @ k.double().mT) * q.shape[-1] ** -0.5
    if causal:
        later = torch.arange(k.shape[-2]) > torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
        s = s.masked_fill(later, -torch.inf)
    return s.softmax(-1).nan_to_num(0.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 40, 57, 16), (1, 300, 33, 5), (130, 260, 64)])
def test_every_summary_is_that_of_the_weights(shape, causal, calls):
    *lead, queries, keys, width = shape
    q, k = torch.randn(*lead, queries, width), 3 * torch.randn(*lead, keys, width)
    regions = torch.rand(4, keys)
    with torch.no_grad():
        one = regard.summarize(q, k, causal=causal, top=5, regions=regions)
    assert calls == ["regard_summarize"]
    p = weights_of(q, k, causal)
    close = {"rtol": 0, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(one.entropy, obvious.entropy(p), **close)
    torch.testing.assert_close(one.received, obvious.received(p), **close)
    torch.testing.assert_close(one.top_weights, obvious.top(p, 5), **close)
    torch.testing.assert_close(one.regions, obvious.mass(p, regions.double()), **close)
    at_places = p.gather(-1, one.top_places.clamp(min=0)) * (one.top_places >= 0)
    torch.testing.assert_close(one.top_weights, at_places, **close)
    assert (one.support == obvious.support(p.float())).double().mean() > 0.99  # float32 underflows where it may


def test_scores_whose_weights_underflow(calls):
    """A weight counts as long as float32 can hold it, also where its exponential is no normal number."""
    q, k = torch.ones(1, 1), torch.tensor([0.0, -50.0, -86.0, -95.0, -120.0, -1e6]).reshape(6, 1)
    with torch.no_grad():
        one = regard.summarize(q, k, regard.Dot(1.0), top=6)
    assert calls == ["regard_summarize"]
    assert one.support.tolist() == [4]
    assert one.entropy.item() == pytest.approx(0.0, abs=1e-6)
    assert one.top_weights[0, 0] == 1
    assert one.top_places[0, :3].tolist() == [0, 1, 2]
    assert one.top_places[0, -1] == -1


def test_scores_that_are_too_large_for_it_go_another_way(calls):
    q = torch.full((2, 2), 1e16)
    with torch.no_grad():
        one = regard.summarize(q, q, regard.Dot(1.0))
    assert calls == []
    assert one.support.tolist() == [2, 2]


def test_queries_before_all_keys_see_nothing(calls):
    q, k = torch.randn(7, 4), torch.randn(3, 4)
    with torch.no_grad():
        one = regard.summarize(q, k, causal=True, top=2, regions=torch.ones(1, 3))
    assert calls == ["regard_summarize"]
    assert one.support.tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert (one.entropy[:4] == 0).all()
    assert (one.top_places[:4] == -1).all()
    assert one.regions[:4].abs().max() == 0
    torch.testing.assert_close(one.received, weights_of(q, k, True).float().sum(0))


def test_views_of_a_model_and_few_heads_at_a_time(calls, monkeypatch):
    """Heads between the tokens, as models have them, half precision, and one call for each head."""
    q, k = (torch.randn(2, 9, 3, 8).transpose(1, 2) for _ in range(2))
    with torch.no_grad():
        whole = regard.summarize(q, k)
        monkeypatch.setattr(query_blocks, "BUDGET", 1)
        single = regard.summarize(q, k)
        halves = regard.summarize(q.half(), k.half())
    assert len(calls) == 1 + 6 + 6
    torch.testing.assert_close(whole.received, single.received, rtol=0, atol=1e-6)  # threads add in another order
    assert torch.equal(whole.entropy, single.entropy)
    torch.testing.assert_close(whole.entropy, halves.entropy, rtol=0, atol=1e-2)
    assert halves.entropy.dtype == torch.float32


@pytest.mark.parametrize("extra", [{"mask": torch.ones(5, dtype=torch.bool)}, {"bias": torch.zeros(5)}, {"sink": 0.1}])
def test_what_it_does_not_know_goes_another_way(extra, calls):
    q, k = torch.randn(4, 8), torch.randn(5, 8)
    with torch.no_grad():
        assert regard.summarize(q, k, **extra).entropy.shape == (4,)
    assert regard.summarize(q.requires_grad_(), k).entropy.requires_grad
    assert calls == []
