"""What torchrun says in its environment variables, and what follows from it."""

import os

import pytest

from regard._problem import Problem
from regard._ranks import Ranks, alone, is_first, launched
from regard.training import Running
from regard.training._fabric import as_launched


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of process 5 of 8, the second of four on the second machine."""
    said = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4, "TORCHELASTIC_RESTART_COUNT": 2}
    for name, value in said.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")


def test_ranks(torchrun):
    assert launched() == Ranks(5, 8, 1, 4, "run/2")
    assert (launched().machines, launched().restarts, is_first()) == (2, 2, False)
    with alone():
        assert launched() == Ranks()
        assert is_first()
        assert "RANK" not in os.environ
    assert launched().rank == 5


def test_the_environment_decides(torchrun):
    running = as_launched(Running())
    assert (running.devices, running.num_nodes) == (4, 2)
    assert as_launched(Running(devices=4, num_nodes=2)) == running
    with pytest.raises(Problem, match=r"--devices is 3, and torchrun has started 4\. Leave --devices out\."):
        as_launched(Running(devices=3))
    with pytest.raises(Problem, match=r"--num-nodes is 3, and torchrun has started 2\."):
        as_launched(Running(num_nodes=3))


def test_what_torchrun_may_start_again_cannot_begin_afresh(torchrun, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert Running().resumes
    with pytest.raises(Problem, match=r"--fresh would begin anew after each restart by torchrun\. Remove the folder"):
        _ = Running(resume=False).resumes
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert not Running(resume=False).resumes
