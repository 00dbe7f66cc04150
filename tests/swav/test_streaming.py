"""Pretraining from a server: the run from a disk bit for bit, also resumed, with loaders, and with a failing server."""

import csv
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from pictures.test_tars import write_shards
from shard_server import s3_environment, served
from swav.test_pretrain import TINY, flags, same

from benchmarks import streaming
from regard._problem import Unreachable
from regard.cli import main
from regard.pictures import CacheSettings, open_pictures
from regard.swav import load_pretraining, run
from regard.swav._folder import PretrainingFolder
from regard.swav._notes import Notes
from regard.training import Order, Running, SampleGroups, latest

MIXED = TINY | {"mixed_shards": 2, "steps": 8}
PROGRAM = "from regard.cli import main\n\nif __name__ == '__main__':\n    main()\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Eight shards in b/set, with their index, and the run from the disk."""
    pytest.importorskip("s3fs")
    place = tmp_path_factory.mktemp("streaming")
    write_shards(place / "b" / "set", shards=8, labels=False)
    open_pictures(place / "b" / "set", cache=CacheSettings(place / "index")).write_index()
    go(place / "b" / "set", place / "disk")
    return place


@pytest.fixture
def server(place, monkeypatch):
    with served(place) as server:
        for name, value in s3_environment(server).items():
            monkeypatch.setenv(name, value)
        yield server


def go(pictures, out, cache=None, workers=0, **options):
    source = open_pictures(pictures, cache=cache)
    running = Running(progress=False, checkpoint_every=2, workers=workers)
    return run(source, out=out, preset_name="small", running=running, **(MIXED | options))


def test_a_server_gives_the_run_that_the_disk_gives(place, server, tmp_path):
    """Read ahead by threads; resumed; asked for each picture by loaders, while every tenth request fails."""
    disk = load_pretraining(place / "disk")
    done = go("s3://b/set", tmp_path / "s3", CacheSettings(tmp_path / "cache"))
    assert same(done.task, disk)
    assert done.task.notes.count == 0
    assert not done.folder.retried.exists()
    assert any(path.name.endswith(".tar") for path in (tmp_path / "cache" / "shards").iterdir())

    with pytest.raises(ZeroDivisionError):
        go("s3://b/set", tmp_path / "parts", CacheSettings(tmp_path / "two"), after_step=lambda step: 1 / (step - 5))
    assert latest(tmp_path / "parts").step == 4
    assert same(go("s3://b/set", tmp_path / "parts", CacheSettings(tmp_path / "two")).task, disk)

    numbers, lock = itertools.count(1), threading.Lock()

    def fail(path):
        with lock:
            return "short" if next(numbers) % 10 == 0 else None

    server.fault = fail
    http = f"{server.url}/b/set"
    failing = go(http, tmp_path / "http", CacheSettings(tmp_path / "none", limit=0), workers=1)
    assert same(failing.task, disk)
    assert failing.folder.retried.read_text().startswith(f"{http}/00")
    assert "retries" in failing.folder.log.read_text().splitlines()[0]


def test_a_shard_that_is_gone_is_named_and_the_run_goes_on(place, server, tmp_path):
    server.fault = lambda path: 404 if path.endswith("003.tar") else None
    done = go(f"{server.url}/b/set", tmp_path / "run", CacheSettings(tmp_path / "cache"))
    again = go(f"{server.url}/b/set", tmp_path / "again", CacheSettings(tmp_path / "cache", limit=0))
    assert list(done.broken) == [f"{server.url}/b/set/003.tar"]
    assert same(done.task, again.task)
    assert "003.tar does not exist" in done.folder.broken.read_text()


def test_notes_outlive_a_crash(place, server, tmp_path):
    """What was broken and what was repeated is in the folder when a run ends by an error; the next adds to it."""
    url, folder = f"{server.url}/b/set", PretrainingFolder(tmp_path / "run")
    source = open_pictures(url, cache=CacheSettings(tmp_path / "cache", limit=0), patience=0.3)
    groups = SampleGroups(source.counts, MIXED["mixed_shards"])
    missing = f"{Order(len(source), MIXED['batch_size'], 0, groups=groups).groups_ahead(0)[0]:03d}.tar"
    server.fault = lambda path: 404 if path.endswith(missing) else None

    def end(step):
        if step == 3:
            server.fault = lambda path: 503

    running = Running(progress=False, checkpoint_every=2)
    with pytest.raises(Unreachable, match="could not be read for 0 s"):
        run(source, out=folder.path, preset_name="small", running=running, after_step=end, **MIXED)
    assert latest(folder.path).step == 2
    assert list(folder.read_broken()) == [f"{url}/{missing}"]
    first = sum(retries.count for retries in folder.read_retried().values())
    assert first >= 1

    left = [1]

    def once(path):
        if path.endswith(missing):
            return 404
        left[0] -= path.endswith(".tar")
        return "short" if path.endswith(".tar") and left[0] == 0 else None

    server.fault = once
    done = go(url, folder.path, CacheSettings(tmp_path / "cache", limit=0))
    assert list(done.broken) == [f"{url}/{missing}"]
    assert len(folder.broken.read_text().splitlines()) == 1
    assert sum(retries.count for retries in folder.read_retried().values()) == first + 1
    with folder.log.open() as file:
        assert float(list(csv.DictReader(file))[-1]["retries"]) == first + 1


def test_notes_of_several_processes(tmp_path):
    one, two = (Notes(PretrainingFolder(tmp_path)) for _ in range(2))
    one.add({"b\udce9.png": "is\tbroken"}, [("0.tar", "timeout"), ("0.tar", "reset\nby peer")])
    two.add({"a.png": "is broken", "b\udce9.png": "is\tbroken"}, [("0.tar", "timeout")])
    one.write()
    two.write()
    one.write()
    with (tmp_path / "retried.txt").open("a") as file:
        file.write("1.tar\t2")  # by a process that was killed meanwhile
    last = Notes(PretrainingFolder(tmp_path))
    assert last.before == 3
    last.finish()
    assert (tmp_path / "broken.txt").read_text() == "a.png\tis broken\nb\\udce9.png\tis\\tbroken\n"
    assert (tmp_path / "retried.txt").read_text() == "0.tar\t3\ttimeout\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_the_benchmark_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "BATCH", 16)
    monkeypatch.setattr(streaming, "BATCHES", 3)
    (tmp_path / "set").mkdir()
    streaming.one_shard(tmp_path / "set" / "0.tar", each=40)
    with served(tmp_path) as server:
        found = streaming.measure(f"{server.url}/set/0.tar", tmp_path / "cache")
    assert found["pictures"] == 40
    assert min(found.values()) > 0


def test_the_command_is_killed_and_goes_on(place, server, tmp_path, monkeypatch):
    """kill -9 in the middle, while the server is slow; then the same command again."""
    (tmp_path / "program").write_text(PROGRAM)
    options = flags(MIXED | {"steps": 24, "checkpoint_every": 2})
    line = ["pretrain", "s3://b/set", "--preset=small", *options, "--no-progress", f"--cache={tmp_path / 'cache'}"]
    line += [f"--out={tmp_path / 'run'}"]
    server.fault = lambda path: time.sleep(0.03)
    threads = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # another number rounds otherwise
    process = subprocess.Popen([sys.executable, str(tmp_path / "program"), *line, "--cache-gb=0"], env=threads)
    until = time.monotonic() + 120
    while (newest := latest(tmp_path / "run")) is None or newest.step < 4:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert latest(tmp_path / "run").step < 24
    server.fault = lambda path: None
    monkeypatch.setattr(sys, "argv", ["regard", *line])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert same(load_pretraining(tmp_path / "run"), go(place / "b" / "set", tmp_path / "whole", steps=24).task)
