"""Every distance and every conversion trains, and where companions matter Wasserstein attention beats dot products."""

import pytest

from benchmarks.same_distribution import CONTESTANTS, DOT, SLOW, learn

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", [n for n in CONTESTANTS if n != DOT])
def test_it_trains(name: str) -> None:
    steps = 25 if name in SLOW else 80
    untrained, trained = (learn(CONTESTANTS[name], True, n, rounds=2) for n in (2, steps))
    assert trained < 0.75 * untrained
    assert trained < 0.75


def test_it_learns_what_a_token_alone_cannot_know_and_dot_product_attention_knows_less() -> None:
    ours, dot = (learn(CONTESTANTS[name], False, 300) for name in ("empirical W2^2, softmax", DOT))
    assert ours < 0.40  # a token alone: 0.5
    assert ours < dot - 0.02
