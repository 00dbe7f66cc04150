"""Starting the server: loopback unless told otherwise, and a port that is taken is said in one line."""

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from regard.cli.explore import explore, on_desktop
from regard.explore._runs import answering_runs, run_of
from regard.explore._serve import explore_app, is_local
from regard.vqa.folder import AnsweringFolder

COMMAND = [sys.executable, "-c", "from regard.cli import main; main()", "explore"]


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_knows_what_only_this_machine_can_reach(host, local):
    assert is_local(host) == local


def test_serves_on_loopback_without_a_model(tmp_path):
    with subprocess.Popen([*COMMAND, "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline() == "There is no model in out/: the page opens on a photograph.\n"
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
            state = httpx.get(f"{address}/api/state", timeout=20).json()
            assert state["model"] is None
            assert "regard demo" in state["hint"]
            assert state["samples"] == []
            assert httpx.get(address, headers={"host": "evil.example"}, timeout=20).status_code == 400
        finally:
            server.terminate()
    assert not list(tmp_path.iterdir())


def test_takes_the_newest_model_that_can_answer(german_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        shutil.copytree(german_run, tmp_path / "out" / name)
    for checkpoint in (tmp_path / "out/old/checkpoints").iterdir():
        os.utime(checkpoint, (1e9, 1e9))
    AnsweringFolder(tmp_path / "out/begun").write_config({"kind": "vqa"})  # a run without a checkpoint yet
    shutil.copytree(german_run, tmp_path / "out/swav")
    AnsweringFolder(tmp_path / "out/swav").write_config({"kind": "swav"})  # one that does not answer
    (tmp_path / "out/broken").mkdir()
    (tmp_path / "out/broken/config.json").write_text("{")
    found = answering_runs(path for path in (tmp_path / "out").iterdir())
    assert [path.name for path in found] == ["new", "old"]
    served = []
    monkeypatch.setattr("regard.explore.serve", lambda *arguments: served.append(arguments))
    explore(None, "127.0.0.1", 0, True, None)
    assert served[0][0] == Path("out/new")
    assert capsys.readouterr().out == f"The newest model in out/ is {Path('out/new')}; also found: {Path('out/old')}\n"
    explore(Path("out/old"), "127.0.0.1", 0, True, None)
    assert served[1][0] == Path("out/old")
    assert capsys.readouterr().out == ""


def test_a_checkpoint_has_the_samples_of_its_run(german_run):
    checkpoint = max((german_run / "checkpoints").iterdir())
    assert run_of(checkpoint) == run_of(german_run) == german_run
    client = TestClient(explore_app(checkpoint, "127.0.0.1"), base_url="http://127.0.0.1")
    assert len(client.get("/api/state").json()["samples"]) == 8


@pytest.mark.parametrize(
    ("environment", "platform", "opens"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0", "SSH_TTY": "/dev/pts/1"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "darwin", False),
        ({}, "win32", True),
    ],
)
def test_opens_the_browser_where_it_can_be_seen(monkeypatch, environment, platform, opens):
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    assert on_desktop(environment, platform) == opens
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert on_desktop(environment, platform) == (opens and platform != "linux")


class TestBrowser:
    @pytest.fixture
    def shown(self, monkeypatch):
        """What is opened in a browser, on a desktop with a terminal."""
        addresses = []
        monkeypatch.setattr("regard.explore.serve", lambda *arguments: arguments[3]("http://127.0.0.1:8000"))
        monkeypatch.setattr("regard.cli.explore.on_desktop", lambda *_: True)
        monkeypatch.setattr("regard.cli.explore._newest", lambda: None)
        monkeypatch.setattr(threading, "Thread", Now)
        controller = webbrowser.BackgroundBrowser("none")
        monkeypatch.setattr(controller, "open", addresses.append)
        monkeypatch.setattr(webbrowser, "get", lambda: controller)
        return addresses

    def test_is_opened(self, shown, monkeypatch):
        start(monkeypatch)
        assert shown == ["http://127.0.0.1:8000"]

    def test_is_not_opened_if_told_so(self, shown, monkeypatch):
        start(monkeypatch, browser=False)
        assert shown == []

    def test_is_not_opened_without_a_terminal(self, shown, monkeypatch):
        start(monkeypatch, terminal=False)
        assert shown == []

    def test_one_in_the_terminal_is_not_opened_and_none_is_no_error(self, shown, monkeypatch):
        lynx = webbrowser.GenericBrowser("lynx")
        monkeypatch.setattr(lynx, "open", shown.append)
        monkeypatch.setattr(webbrowser, "get", lambda: lynx)
        start(monkeypatch)

        def none():
            raise webbrowser.Error("no browser")

        monkeypatch.setattr(webbrowser, "get", none)
        start(monkeypatch)
        assert shown == []


def start(monkeypatch, browser=True, terminal=True):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal() if terminal else io.StringIO())
        explore(None, "127.0.0.1", 8000, browser, None)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Now:
    """A thread that is done at once."""

    def __init__(self, target, args, daemon):
        assert daemon
        self.start = lambda: target(*args)


def test_says_what_cannot_be_served(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([*COMMAND, "--port", port], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"regard: port {port} on 127.0.0.1 cannot be used. Choose others with --port and --host.\n"
    done = subprocess.run([*COMMAND, "nowhere"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("regard: nowhere is not there.")
