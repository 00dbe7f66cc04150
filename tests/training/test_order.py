"""The order of samples that are stored in groups: against the epoch written out, and what it promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.order import epoch_order

from regard.training import Order, SampleGroups

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=9).filter(lambda sizes: sum(sizes) > 0)


@given(SIZES, st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_it_is_the_epoch_written_out(sizes, mixed, batch, seed):
    order = Order(sum(sizes), batch, seed, groups=SampleGroups(sizes, mixed))
    for epoch in (0, 1):
        whole = epoch_order(sizes, mixed, seed, epoch)
        assert sorted(whole) == list(range(sum(sizes)))
        first = epoch * order.per_epoch
        found = [i for _, indices in order.between(first, first + order.per_epoch) for i in indices]
        assert found == whole[: len(found)]


@given(SIZES, st.integers(1, 3), st.integers(1, 3), st.integers(0, 40))
def test_any_batch_from_scratch_on_any_number_of_processes(sizes, mixed, world, number):
    sizes = [*sizes, 6]
    groups = SampleGroups(sizes, mixed)
    whole = Order(sum(sizes), 6, 1, groups=groups)
    parts = [Order(sum(sizes), 6, 1, rank, world, groups) for rank in range(world)]
    epoch, indices = whole.at(number)
    assert [i for part in parts for i in part.at(number)[1]] == indices
    ahead = whole.groups_ahead(number)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    used = {next(g for g, end in enumerate(ends) if i < end) for i in indices}
    if len(sizes) > mixed and all(sizes):
        assert len(ahead) <= 3 * mixed
        assert used <= set(ahead) or sum(sorted(sizes)[:mixed]) < 6  # a batch may be longer than two windows
    if len(sizes) <= mixed:
        assert (epoch, indices) == Order(sum(sizes), 6, 1).at(number)
        assert ahead == list(range(len(sizes)))


def test_the_window_after_the_last_is_of_the_next_epoch():
    order = Order(12, 3, 0, groups=SampleGroups([3, 3, 3, 3], 2))
    assert sorted(order.groups_ahead(0)) == [0, 1, 2, 3]
    assert order.groups_ahead(2)[:2] == order.groups_ahead(0)[2:]
    assert order.groups_ahead(2)[2:] == [g for g in order.groups_ahead(4)[:2] if g not in order.groups_ahead(2)[:2]]


def test_groups_that_are_not_the_data():
    with pytest.raises(ValueError, match="groups: got 5 samples, expected 6"):
        Order(6, 2, 0, groups=SampleGroups([3, 2], 1))
    with pytest.raises(ValueError, match="mixed"):
        SampleGroups([3, 2], 0)
