"""Bounds of the flow through layers, against the maximum flow on all edges."""

import pytest
import reference.summaries as obvious
import torch
from attention.test_summaries import Largest

import regard
from regard.attention import query_blocks
from regard.attention.lazy import LazyWeights


def lazy_layers(count, tokens, heads=2, map=regard.softmax, scale=2.0):
    torch.manual_seed(count + tokens)
    return [
        LazyWeights(*(scale * torch.randn(heads, tokens, 4, dtype=torch.float64) for _ in range(2)), map=map)
        for _ in range(count)
    ]


def formed(layers):
    return [layer.rows(range(layer.shape[-1])) for layer in layers]


@pytest.mark.parametrize("budget", [1 << 21, 20])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.9])
@pytest.mark.parametrize("map", [regard.softmax, regard.sparsemax])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_maximum_flow_lies_between_the_bounds(count, map, residual, budget, monkeypatch):
    monkeypatch.setattr(query_blocks, "BUDGET", budget)
    layers = lazy_layers(count, 5, map=map)
    rows, sinks = [0, -1], [0, 3]
    bounds = regard.flow(layers, rows, sinks, residual=residual)
    whole = formed(layers)
    expected = torch.tensor([[obvious.flow(whole, row % 5, sink, residual) for sink in sinks] for row in rows])
    assert (bounds.low <= expected + 1e-6).all()
    assert (expected <= bounds.high + 1e-6).all()
    assert (bounds.low >= regard.rollout(layers, rows, residual=residual)[:, sinks] - 1e-12).all()
    if count <= 2:
        torch.testing.assert_close(bounds.high, expected, check_dtype=False, rtol=0, atol=1e-6)
    if count == 1:
        torch.testing.assert_close(bounds.low, expected, check_dtype=False, rtol=0, atol=1e-6)
    for got, again in zip(bounds, regard.flow(whole, rows, sinks, residual=residual), strict=True):
        torch.testing.assert_close(got, again)


def test_flow_is_more_than_rollout_and_less_than_its_upper_bound():
    """Two of the upper paths share an edge: the flow is less than the bound, which does not see that."""
    first = torch.tensor([[[0.1, 0.9, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]])
    second = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    third = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    layers = [first, second, third]
    bounds = regard.flow(layers, [0], [0], residual=0.0)
    assert obvious.flow(layers, 0, 0, 0.0) == pytest.approx(0.1)
    assert float(bounds.low) == pytest.approx(0.1)
    assert float(bounds.high) == pytest.approx(0.1)  # what enters the sink is a cut
    second = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.2, 0.8, 0.0]]])
    first = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.9, 0.0, 0.1]]])
    bounds = regard.flow([first, second, third], [0], [0], residual=0.0)
    assert obvious.flow([first, second, third], 0, 0, 0.0) == pytest.approx(0.5)
    assert float(bounds.high) == pytest.approx(1.0)


def test_a_batch_and_memory(monkeypatch):
    monkeypatch.setattr(query_blocks, "BUDGET", 1 << 12)
    q, k = torch.randn(2, 2, 1, 300, 4), torch.randn(2, 2, 1, 300, 4)
    layers = [LazyWeights(q[i], k[i]) for i in range(2)]
    with Largest() as largest:
        bounds = regard.flow(layers, [0], [1, 2, 3])
    assert bounds.high.shape == bounds.low.shape == (2, 1, 3)
    assert largest.entries < 300**2
    alone = regard.flow([LazyWeights(q[i, 1], k[i, 1]) for i in range(2)], [0], [1, 2, 3])
    torch.testing.assert_close(bounds.high[1], alone.high)
    torch.testing.assert_close(bounds.low[1], alone.low)


def test_arguments():
    layers = lazy_layers(2, 4)
    with pytest.raises(ValueError, match=r"^layers: got none"):
        regard.flow([], [0], [0])
    with pytest.raises(ValueError, match=r"^at: got \[4\], expected places of the 4 queries"):
        regard.flow(layers, [0], [4])
    with pytest.raises(ValueError, match=r"^residual"):
        regard.flow(layers, [0], [0], residual=2.0)
