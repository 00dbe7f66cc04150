"""Processes that load batches: their death is said, and none outlives the loop."""

import multiprocessing
import os
import signal

import pytest
from torch.utils.data import DataLoader, Dataset

from regard._problem import Problem
from regard._stop import Stopped, stop_now
from regard.training._loaded import Loaded, outlive_signals


class Numbers(Dataset):
    """Numbers; the process that loads number `deadly` kills itself."""

    def __init__(self, deadly=-1):
        self.deadly = deadly

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def loader(deadly=-1):
    return DataLoader(
        Numbers(deadly), batch_size=None, num_workers=2, worker_init_fn=outlive_signals, persistent_workers=True
    )


@pytest.fixture(autouse=True)
def usual_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_all_batches_come_and_nothing_is_left():
    with Loaded(loader()) as batches:
        assert len(multiprocessing.active_children()) == 2
        assert list(batches) == list(range(100))
    assert not multiprocessing.active_children()


def test_the_death_of_a_process_is_a_problem():
    with pytest.raises(Problem, match=r"loaded data was ended by SIGKILL.*--workers"), Loaded(loader(50)) as batches:
        list(batches)
    assert not multiprocessing.active_children()


def test_an_error_within_keeps_no_process_alive():
    """Also while its traceback holds the loop: at the end of the program such a process was waited for for ever."""
    held = []

    def loop():
        with Loaded(loader()) as batches:
            held.append(next(batches))
            raise KeyError("within")

    with pytest.raises(KeyError, match="within") as error:
        loop()
    assert error.value.__traceback__ is not None
    assert held == [0]
    assert not multiprocessing.active_children()


class Interrupted:
    """A loader that gets a signal while its processes start."""

    def __init__(self):
        self.started = False

    def __iter__(self):
        signal.raise_signal(signal.SIGTERM)
        self.started = True
        return iter([1])


def test_a_signal_while_they_start_waits_until_they_have():
    interrupted = Interrupted()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(Stopped) as stopped, Loaded(interrupted):
        pytest.fail("entered")
    assert interrupted.started
    assert stopped.value.status == 143


class Batches:
    """Batches whose destructor gets a signal, and waits as that of torch's loader does."""

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_while_they_end_is_not_lost():
    """What is raised in a destructor is printed and forgotten."""
    signal.signal(signal.SIGTERM, stop_now)
    with pytest.raises(Stopped) as stopped, Loaded(Batches()) as batches:
        assert next(batches) == 1
    assert stopped.value.status == 143
