"""The simulator of a step on many processes: closed forms, limits, and what must cost more."""

import numpy as np
import pytest

from benchmarks.step_cost import ASSUMED, PUBLISHED, Cluster, Exchanges, all_reduce, costliest, step_seconds

NOTHING = Exchanges(norms=0, norm_bytes=0, codes=0, code_bytes=0, gradient_bytes=0)
PLAIN = Cluster(compute=0.3, latency=1e-3, bandwidth=1e6)


@pytest.mark.parametrize("n", [2, 3, 4, 64])
def test_a_ring_is_two_messages_for_each_other_process(n):
    expected = 2 * (n - 1) * (1e-3 + 500 / n / 1e6)
    assert all_reduce(np.zeros(n), 500, n, PLAIN) == pytest.approx(np.full(n, expected))


def test_nobody_is_done_before_the_slowest_has_sent():
    late = np.array([0.0, 0.0, 7.0, 0.0])
    for ring in (True, False):
        cluster = Cluster(0, 1e-3, 1e6, ring=ring)
        assert all_reduce(late, 8, 4, cluster).min() > 7
        first, second = all_reduce(late, 8, 2, cluster).reshape(2, 2)
        assert first.max() < 1 < 7 < second.min()  # groups do not wait for each other


def test_neighbours_on_one_machine_are_near():
    cluster = Cluster(0, 1e-3, 1e12, near_latency=1e-6, near_processes=4)
    assert all_reduce(np.zeros(8), 0, 4, cluster).max() == pytest.approx(6e-6)
    assert all_reduce(np.zeros(8), 0, 8, cluster).max() == pytest.approx(14e-3)


def test_one_process_only_computes():
    assert step_seconds(PUBLISHED, PLAIN, 1) == pytest.approx(0.3)
    assert step_seconds(NOTHING, Cluster(0.3, 0.0, 1e6), 8) == pytest.approx(0.3)


def test_each_exchange_adds_its_messages():
    one = 2 * 3 * 1e-3  # a ring of four
    codes = Exchanges(0, 0, codes=5, code_bytes=0, gradient_bytes=0)
    assert step_seconds(codes, PLAIN, 4) - step_seconds(NOTHING, PLAIN, 4) == pytest.approx(5 * one)
    norms = Exchanges(norms=10, norm_bytes=0, codes=0, code_bytes=0, gradient_bytes=0)
    assert step_seconds(norms, PLAIN, 4) - step_seconds(NOTHING, PLAIN, 4) == pytest.approx(10 * one)
    assert step_seconds(norms, PLAIN, 4, norm_processes=1) == step_seconds(NOTHING, PLAIN, 4)
    pairs = step_seconds(norms, PLAIN, 4, norm_processes=2) - step_seconds(NOTHING, PLAIN, 4)
    assert pairs == pytest.approx(10 * 2 * 1e-3)


def test_gradients_hide_behind_the_backward_pass():
    """All buckets but the last."""
    sent = Exchanges(0, 0, 0, 0, gradient_bytes=1e4, buckets=4)
    bucket = 2 * 1 * (1e-3 + 2500 / 2 / 1e6)
    assert step_seconds(sent, PLAIN, 2) == pytest.approx(0.3 + bucket)
    slow = Cluster(0.3, 1e-3, 1e4)  # the network is the bottleneck: from the first bucket on it is busy
    bucket = 2 * 1 * (1e-3 + 2500 / 2 / 1e4)
    assert step_seconds(sent, slow, 2) == pytest.approx(0.1 + 0.05 + 4 * bucket)


def test_norms_break_first():
    assert costliest(PUBLISHED, ASSUMED, 512, 0)[0] == "norms"
    assert costliest(PUBLISHED, ASSUMED, 512, 1)[0] != "norms"
    seconds = [step_seconds(PUBLISHED, ASSUMED, n) for n in (8, 64, 512)]
    assert seconds == sorted(seconds)
