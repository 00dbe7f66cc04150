"""Leases on a shared disk: one holder at a time, taken over when it is gone, and no sooner."""

import json
import subprocess
import sys
import threading
import time

import pytest

from regard.vqa.leases import Leases

HOLD = """
import sys, time
from pathlib import Path
from regard.vqa.leases import Leases
with Leases(Path(sys.argv[1]), lasts=1.0).hold("work") as held:
    print(held, flush=True)
    time.sleep(600)
"""


def test_one_of_many_gets_it(tmp_path):
    """Threads with objects of their own, as processes would have."""
    held, start, leave = [], threading.Barrier(8), threading.Barrier(8)

    def work():
        leases = Leases(tmp_path)
        start.wait()
        with leases.hold("work") as mine:
            held.append(mine)
            leave.wait()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(held) == [False] * 7 + [True]
    assert Leases(tmp_path).is_free("work")  # given back at the end
    assert Leases(tmp_path).is_free("other")


def test_a_living_holder_keeps_it_and_a_killed_one_loses_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "True\n"
            leases = Leases(tmp_path, lasts=1.0)
            assert leases.holder("work").startswith(f"process {process.pid} on ")
            until = time.monotonic() + 2.5  # more than twice as long as it lasts without being renewed
            while time.monotonic() < until:
                assert not leases.is_free("work")
                time.sleep(0.1)
        finally:
            process.kill()
    deadline = time.monotonic() + 60
    while not leases.is_free("work"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with leases.hold("work") as held:
        assert held
        assert not Leases(tmp_path, lasts=1.0).is_free("work")


def test_what_was_held_before_a_restart_is_free_at_once(tmp_path, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    (tmp_path / "work.0").write_text(json.dumps({"stamp": "a", "released": False, "launch": "run/0"}))
    assert not Leases(tmp_path).is_free("work")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert Leases(tmp_path).is_free("work")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not Leases(tmp_path).is_free("work")


def test_a_lease_that_was_taken_over_is_not_renewed(tmp_path):
    leases = Leases(tmp_path, lasts=0.5)
    with leases.hold("work"):
        (tmp_path / "work.1").write_text(json.dumps({"stamp": "b", "released": False}))  # another was quicker to judge
        time.sleep(0.3)
        before = (tmp_path / "work.0").read_text()
        time.sleep(0.3)
        assert (tmp_path / "work.0").read_text() == before
    assert not leases.is_free("work")  # the other's, which is not touched
    with pytest.raises(FileNotFoundError):
        (tmp_path / "work.2").read_text()
