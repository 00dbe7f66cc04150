"""The head of a classifier: where it starts, what bounds its scores, and the names of its pools."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.classify import POOLS, ClassifierHead, ClassifierSettings, parse_pool
from regard.classify.head import score_bound
from regard.classify.summary import ClassifierSummary, Estimated, PoolResult

CELLS, DIM = (3, 4), 6
ATTENTIONS = [str(pool) for pool in POOLS if str(pool) not in ("average", "non-local")]


def features(seed=0, count=5):
    return torch.randn(count, *CELLS, DIM, generator=torch.Generator().manual_seed(seed))


def head_of(pool, **options):
    torch.manual_seed(0)
    head = ClassifierHead(DIM, 3, CELLS, pool, hidden=8, **options)
    torch.nn.init.normal_(head.linear.weight)
    return head


@pytest.mark.parametrize("pool", [*[p for p in ATTENTIONS if p.startswith("discrete")], "non-local"])
def test_a_discrete_pool_starts_as_the_average(pool):
    """In scores of classes, whatever the network that scores cells was initialised with."""
    expected = head_of("average").eval()(features()).scores
    head = head_of(pool).eval()
    torch.nn.init.normal_(head.linear.weight)
    head.linear.load_state_dict(head_of("average").linear.state_dict())
    assert torch.allclose(head(features()).scores, expected, atol=1e-5)


@pytest.mark.parametrize("pool", ATTENTIONS)
def test_the_score_network_learns_from_the_start(pool):
    """Zero weights of its last layer do not stop the gradient."""
    head = head_of(pool)
    head(features()).scores.square().sum().backward()
    assert head.attention.pool.score[-2].weight.grad.abs().max() > 0


@given(st.floats(1, 3), st.integers(2, 200), st.floats(0.02, 0.98), st.integers(0, 10_000))
def test_no_cell_has_more_than_the_largest_weight(alpha, cells, share, seed):
    """For scores of any kind within the bound; and with one cell against all others it is reached."""
    largest = 1 / cells + share * (1 - 1 / cells)
    bound = score_bound(alpha, cells, largest)
    s = (2 * torch.rand(cells, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1) * bound
    assert float(regard.entmax(s, alpha).max()) <= largest + 1e-6
    worst = torch.full((cells,), -bound, dtype=torch.float64)
    worst[seed % cells] = bound
    assert float(regard.entmax(worst, alpha).max()) == pytest.approx(largest, abs=1e-6)


@pytest.mark.parametrize("pool", ["discrete-softmax", "discrete-sparsemax", "discrete-entmax", "discrete-entmax-1.3"])
@pytest.mark.parametrize("largest", [0.2, 0.6, 1.0])
def test_weights_of_the_head_stay_below_it(pool, largest):
    head = head_of(pool, largest=largest).eval()
    for parameter in head.attention.pool.score.parameters():
        torch.nn.init.normal_(parameter, std=50)
    highest = float(head(features()).looked.weights.detach().max())
    assert highest <= largest + 1e-5
    assert highest > 0.9 * largest if largest == 1.0 else highest > 1 / 12  # free scores reach one cell


def test_features_are_standardised_by_averages():
    head, x = head_of("average").eval(), 3 + 2 * features(count=50)
    averages = x.mean((1, 2))
    head.standardise(averages)
    context = head(x).looked.context
    assert torch.allclose(context.mean(0), torch.zeros(DIM), atol=1e-5)
    assert torch.allclose(context.std(0), torch.ones(DIM), atol=1e-4)
    head.standardise(torch.ones(4, DIM))  # constant features stay finite
    assert bool(head(x).scores.isfinite().all())


@pytest.mark.parametrize("pool", ["discrete-softmax", "continuous-softmax", "continuous-sparsemax"])
def test_gradients(pool):
    head = head_of(pool).double()
    torch.nn.init.normal_(head.attention.pool.score[-2].weight, std=0.3)
    x = features(count=2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: head(x).scores, (x,))


@pytest.mark.parametrize("pool", POOLS)
def test_a_name_is_read_as_it_is_printed(pool):
    assert parse_pool(str(pool)) == pool
    assert parse_pool(pool) is pool


@pytest.mark.parametrize("name", ["", "maximum", "discrete", "average-2", "mixture"])
def test_an_unknown_name_is_answered_by_all_that_can_be_written(name):
    with pytest.raises(ValueError, match=r"expected one of average, non-local, discrete-softmax, .*mixture-2"):
        parse_pool(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pool": "discrete-entmax-0.2"}, "alpha"),
        ({"largest": 0.0}, "largest"),
        ({"largest": 1.5}, "largest"),
        ({"held_out": 1.0}, "held_out"),
        ({"dropout": 1.0}, "dropout"),
        ({"lr": 0.0}, "lr"),
        ({"epochs": -1}, "epochs"),
    ],
)
def test_wrong_settings_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        ClassifierSettings(**change)


def test_the_table_and_the_sentence():
    look = {"mass": Estimated(0.7, 0.6, 0.8), "pointing": Estimated(1, 1, 1), "divergence": Estimated(0.3, 0.2, 0.4)}
    results = {
        "discrete-softmax": PoolResult(80, (40, 40), Estimated(-1.0, -3.0, 1.0), look, 3.0),
        "average": PoolResult(81, (41, 40), None, {}, 1.0),
    }
    blind = {"even spread": {"mass": 0.4, "pointing": 0.4, "divergence": 0.5}}
    summary = ClassifierSummary(
        "pets", ("a", "b"), 10, (50, 50), False, 50, "discrete-softmax", results, blind, 0.4, 90
    )
    assert ClassifierSummary.from_json(summary.to_json()) == summary
    table = summary.table()
    assert "discrete softmax      80.0 % (71.1 to 86.7)" in table
    assert "-1.0 (-3.0 to +1.0)" in table
    assert "objects take 40 % of the picture, by 90 masks" in table
    assert "even spread" in table
    assert summary.sentence.endswith("with the commonest class one gets 50, with average pooling 81.")
