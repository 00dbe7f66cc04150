"""Slow, idle and many connections, and the end of the server: nobody is kept from an answer, none is lost."""

import contextlib
import socket
import subprocess
import threading
import time

import httpx
import pytest
from fake_model import FakePredictor

from regard.explore import Limits, create_app
from regard.explore._connections import Server
from regard.explore._samples import drawn_scenes
from tools import load

QUESTION = load.question("scene-4", b"", "is it bright?")


@pytest.fixture(scope="module")
def pictures():
    return {scene.name: scene for scene in drawn_scenes()}


@contextlib.contextmanager
def serving(pictures, model=None, **limits):
    """A server with these limits, in a thread; its port and itself."""
    limits = Limits(**{"workers": 1, "waiting": 2} | limits)
    app = create_app(model or FakePredictor(), pictures, limits)
    server = Server(app, "127.0.0.1", limits, app.state.stop)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listening.getsockname()[1] if listening.fileno() != -1 else 0, server
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def connected(port, sent=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(sent)
    return connection


def status(connection):
    """The status of an answer; 0 if the connection was closed without one."""
    with contextlib.suppress(ConnectionError):
        answer = connection.recv(1 << 16)
        return int(answer.split(b" ", 2)[1]) if answer else 0
    return 0


def test_slow_bodies_take_no_place(pictures):
    """Eighteen did, which was all there were."""
    with serving(pictures) as (port, _), contextlib.ExitStack() as stack:
        for _ in range(18):
            stack.enter_context(connected(port, QUESTION[:-30]))
        time.sleep(0.2)
        assert status(stack.enter_context(connected(port, QUESTION))) == 200


def test_a_body_that_takes_too_long_is_told_so(pictures):
    with serving(pictures, seconds_to_send=0.2) as (port, _), connected(port, QUESTION[:-30]) as slow:
        assert status(slow) == 408


def test_bodies_that_arrive_share_the_memory_and_the_oldest_gives_way(pictures):
    body = load.question("a.png", bytes(90_000), "is it bright?")
    with (
        serving(pictures, arriving_bytes=150_000) as (port, _),
        connected(port, body[:-100]) as older,
    ):
        time.sleep(0.3)
        with connected(port, body[:-100]) as newer:
            assert status(older) == 408
            newer.sendall(body[-100:])
            assert status(newer) == 422  # it has arrived, and is no picture


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: a", load.request("GET", "/api/state") + b"G"])
def test_connections_without_a_request_are_closed(pictures, sent):
    """Also after a first request and one letter of a second, which ended uvicorn's own timer."""
    with serving(pictures, seconds_idle=0.5) as (port, _), connected(port, sent) as idle:
        answer = b"".join(iter(lambda: idle.recv(1 << 16), b""))
        assert (b"200 OK" in answer) == sent.endswith(b"G")


def test_idle_connections_give_way_to_new_ones(pictures):
    with serving(pictures, connections=5) as (port, server), contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(port)) for _ in range(40)]
        assert status(stack.enter_context(connected(port, QUESTION))) == 200
        assert idle[0].recv(1) == b""  # the first of them
        assert len(server.server_state.connections) <= 6


def test_at_its_end_the_server_answers_what_it_works_on_and_refuses_the_rest(pictures):
    model = FakePredictor()
    with serving(pictures, model) as (port, server), contextlib.ExitStack() as stack:
        model.hold.set()
        worked_on = stack.enter_context(connected(port, QUESTION))
        while not model.asked:
            time.sleep(0.01)
        waits = stack.enter_context(connected(port, QUESTION))
        slow, idle = stack.enter_context(connected(port, QUESTION[:-30])), stack.enter_context(connected(port))
        time.sleep(0.3)
        server.should_exit = True
        assert status(waits) == 503
        assert status(slow) == 503
        assert status(idle) == 0
        model.hold.clear()
        assert status(worked_on) == 200
    assert model.asked == 1


def test_the_real_server_under_load(german_run, tmp_path):
    """As `tools/load.py`, which presses it with 200 askers for a minute."""
    process, port = load.started(german_run, tmp_path)
    try:
        counts, memory, ending = load.press(
            port, load.usual_requests(port), askers=30, slow_ones=24, seconds=3, process=process.pid
        )
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert set(counts.statuses) <= {200, 503}
    assert counts.statuses[200] > 30
    assert (counts.unanswered, counts.cut_off) == (0, 0)
    assert counts.quantile(1) < load.LONGEST
    assert max(memory) - memory[len(memory) // 4] < load.GROWTH
    assert ending < 30  # the tool says 5, on a machine without other work
    assert process.returncode == 143
    assert "Traceback" not in said


def test_the_tool_sees_an_answer_that_is_cut_off():
    """It would be worthless if every end of a connection were the same to it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            for reply in (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b""):
                connection = listening.accept()[0]
                connection.recv(1 << 16)
                connection.sendall(reply)
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        sleeping = subprocess.Popen(["sleep", "60"])
        port = listening.getsockname()[1]
        counts, _, _ = load.press(
            port, [QUESTION], askers=1, slow_ones=0, seconds=1.0, process=sleeping.pid, stop=False
        )
        thread.join()
        sleeping.kill()
        sleeping.wait()
    assert counts.cut_off == 1
    assert counts.unanswered >= 1
    assert not counts.statuses


def test_the_page_answers_as_before(pictures):
    with serving(pictures) as (port, _):
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=20).status_code == 200
