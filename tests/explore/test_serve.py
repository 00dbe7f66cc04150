"""Starting the server: loopback unless told otherwise, and a port that is taken is said in one line."""

import re
import socket
import subprocess
import sys

import httpx
import pytest

from regard.explore._serve import is_local

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
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
            state = httpx.get(f"{address}/api/state", timeout=20).json()
            assert state["model"] is None
            assert "make demo" in state["hint"]
            assert [p["name"] for p in state["samples"]][-1] == "cat"
            assert httpx.get(address, headers={"host": "evil.example"}, timeout=20).status_code == 400
        finally:
            server.terminate()
    assert not list(tmp_path.iterdir())


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
