"""Signals, locks, workers and what is written whole: the parts that long commands are made of."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from regard import _files, _stop
from regard._files import disk_words, remove_leftovers, replacing, reserve
from regard._lock import LOCK, writing_to
from regard._problem import Problem
from regard._stop import Stop, Stopped, current_stop, terminable
from regard._workers import run_parallel


@pytest.fixture(autouse=True)
def usual_handlers():
    """As in a command that was just started, also where the tests run in the background, which ignores ctrl-c."""
    before = {number: signal.getsignal(number) for number in _stop.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_obeyed_at_the_end_of_a_step(number, status):
    steps = []

    def work():
        with Stop() as stop:
            for step in range(9):
                if step == 2:
                    signal.raise_signal(number)
                    signal.raise_signal(number)  # at once, as `timeout` sends it: still the first
                steps.append(step)
                if stop.requested:
                    stop.kept = "two"
                    break

    with pytest.raises(Stopped) as stopped:
        work()
    assert steps == [0, 1, 2]
    assert (stopped.value.status, stopped.value.kept) == (status, "two")
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_work_that_ends_before_it_looks_is_still_stopped():
    with pytest.raises(Stopped), Stop():
        signal.raise_signal(signal.SIGTERM)


def test_the_second_signal_ends_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr(_stop, "_ONE_SIGNAL", -1.0)
    monkeypatch.setattr(os, "_exit", ended.append)

    def work():
        with Stop():
            signal.raise_signal(signal.SIGINT)
            assert ended == []
            signal.raise_signal(signal.SIGTERM)
            assert ended == [143]

    with pytest.raises(Stopped):
        work()


def test_handlers_of_others_and_ignored_signals_are_left_alone():
    noted = []
    signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert (noted, stop.requested, current_stop()) == ([signal.SIGTERM], 0, None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_contexts_within_each_other_and_in_threads():
    outer, entered = Stop(), []

    def nested():
        with outer, Stop() as inner:
            inner.kept = "inner"
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match="inner"):
        nested()
    assert not outer.requested

    def work():
        with Stop() as stop:
            entered.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [0]


def test_an_error_after_a_signal_is_its_consequence_and_a_problem_is_not():

    def work(error):
        with Stop():
            signal.raise_signal(signal.SIGTERM)
            raise error

    with pytest.raises(Stopped):
        work(RuntimeError("a loader was killed"))
    with pytest.raises(Problem, match="full"):
        work(Problem("the disk is full"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_work_says_nothing(number):
    """While the interpreter cleans up: a traceback there would be of somebody else's code."""
    program = f"""
import atexit, signal, sys
atexit.register(signal.raise_signal, {int(number)})
sys.argv = ["regard", "--version"]
from regard.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_terminable():
    with pytest.raises(Stopped) as stopped, terminable():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.status == 143


HOLD = "import sys, time; from regard._lock import writing_to\nwith writing_to(sys.argv[1]):\n print(1, flush=1)\n "


def holder(folder, then="time.sleep(60)"):
    process = subprocess.Popen([sys.executable, "-c", HOLD + then, str(folder)], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_a_folder_has_one_writer_and_a_second_hears_who(tmp_path):
    process = holder(tmp_path)
    held = json.loads((tmp_path / LOCK).read_text())
    assert held["process"] == process.pid
    with (
        pytest.raises(Problem, match=f"is being written by process {process.pid} on {held['host']}"),
        writing_to(tmp_path, wait=0),
    ):
        pass
    process.kill()
    process.communicate()
    assert (tmp_path / LOCK).is_file()  # of a dead process: taken over
    (tmp_path / f".config.json.{process.pid}.tmp").write_text("half")
    (tmp_path / "checkpoints" / f".step-00000004.{process.pid}.tmp").mkdir(parents=True)
    with writing_to(tmp_path), writing_to(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["process"] == os.getpid()
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoints"]


def test_who_waits_gets_the_folder_when_it_is_free(tmp_path):
    process = holder(tmp_path, "time.sleep(0.5)")
    with writing_to(tmp_path, wait=60):
        process.communicate()
        assert process.returncode == 0
        assert json.loads((tmp_path / LOCK).read_text())["process"] == os.getpid()


def test_another_thread_is_another_writer(tmp_path):
    problems = []

    def write():
        try:
            with writing_to(tmp_path):
                pass
        except Problem as problem:
            problems.append(str(problem))

    with writing_to(tmp_path):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert "another thread" in problems[0]


def test_processes_that_train_together_share_the_folder(tmp_path, monkeypatch):
    process = holder(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with writing_to(tmp_path, wait=0):
        pass
    process.kill()
    process.communicate()


def test_leftovers_of_the_living_stay(tmp_path):
    with replacing(tmp_path / "a.txt") as beside:
        beside.write_text("being written")
        assert remove_leftovers(tmp_path) == []
    assert (tmp_path / "a.txt").read_text() == "being written"


@pytest.mark.parametrize("falloc", [True, False])
def test_space_is_reserved_and_content_kept(tmp_path, monkeypatch, falloc):
    if not falloc:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    path = tmp_path / "rows.bin"
    path.write_bytes(b"first")
    with path.open("r+b") as file:
        reserve(file, 3_000_000)
        reserve(file, 10)
    assert path.stat().st_size == 3_000_000
    assert path.read_bytes()[:6] == b"first\0"
    assert path.stat().st_blocks * 512 >= 3_000_000


@pytest.mark.parametrize("falloc", [True, False])
def test_space_that_is_not_there_is_an_error_at_once(tmp_path, monkeypatch, limited_files, falloc):
    if not falloc:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    path = tmp_path / "rows.bin"
    with path.open("w+b") as file, limited_files(1 << 16), pytest.raises(OSError, match="too large") as error:
        reserve(file, 1 << 20)
    assert "no space is left on the disk of rows" in disk_words(error.value, "rows")
    assert path.stat().st_size == 0


def test_other_errors_keep_their_words():
    assert disk_words(OSError(errno.ECONNRESET, "reset"), "x") is None
    assert "was removed" in disk_words(FileNotFoundError(errno.ENOENT, "No such file", "a.bin"), "x")
    assert disk_words(FileNotFoundError(errno.ENOENT, "No such file", "a.bin")) is None  # it may never have been there
    assert "fails" in disk_words(OSError(errno.EIO, "I/O error"), "x")


def squared(number):
    return number * number


def hold_a_step(path):
    """Steps of a tenth of a second, until a signal or the parent ends it."""
    with Stop() as stop:
        (path / f"{os.getpid()}.begun").touch()
        while not stop.requested:
            time.sleep(0.1)
        (path / f"{os.getpid()}.kept").touch()


def hold_without_looking(path):
    """Work that looks at no signal, and is ended in the middle."""
    (path / f"{os.getpid()}.begun").touch()
    time.sleep(300)


def miss_the_first_wish(path):
    """The wish to end comes the moment after a step has looked for the last time; then other work begins."""
    first = Stop()
    with first:
        (path / f"{os.getpid()}.begun").touch()
        while not first.requested:
            time.sleep(0.02)
        first.requested = 0
    with Stop() as second:
        while not second.requested:
            time.sleep(0.02)
        (path / f"{os.getpid()}.kept").touch()


def fail_or_hold(path):
    if path.name == "fails":
        while not list(path.parent.glob("*.begun")):
            time.sleep(0.05)
        raise Problem("this one cannot work")
    hold_a_step(path)


def die(path):
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_in_order_from_few_workers():
    looks = []
    assert run_parallel(squared, range(5), 2, look=lambda: looks.append(1)) == [0, 1, 4, 9, 16]
    assert looks


def test_an_error_of_one_ends_the_others_after_their_step(tmp_path):
    with pytest.raises(Problem, match="this one cannot work"):
        run_parallel(fail_or_hold, [tmp_path, tmp_path / "fails"], 2)
    assert len(list(tmp_path.glob("*.kept"))) == 1


def test_a_worker_that_is_killed_is_told():
    with pytest.raises(Problem, match=r"was ended by SIGKILL.*rerun"):
        run_parallel(die, [0], 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_first_process_ends_all_after_their_step(tmp_path, number):
    def look():
        if len(list(tmp_path.glob("*.begun"))) == 2:
            signal.raise_signal(number)

    with pytest.raises(Stopped) as stopped:
        run_parallel(hold_a_step, [tmp_path, tmp_path], 2, look=look, kept="two steps")
    assert (stopped.value.number, stopped.value.kept) == (number, "two steps")
    assert len(list(tmp_path.glob("*.kept"))) == 2


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import test_stop
from regard._workers import run_parallel
if __name__ == "__main__":
    run_parallel(getattr(test_stop, sys.argv[3]), [Path(sys.argv[2])] * 2, 2)
"""


@pytest.mark.parametrize(("work", "kept"), [(hold_without_looking, 0), (miss_the_first_wish, 2)])
def test_workers_end_with_a_killed_parent_whatever_they_do(tmp_path, work, kept):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), os.path.dirname(__file__), str(tmp_path), work.__name__]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(begun := list(tmp_path.glob("*.begun"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    numbers = [int(path.stem) for path in begun]
    deadline = time.monotonic() + 30
    while any(_files.process_lives(number) for number in numbers) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = [number for number in numbers if _files.process_lives(number)]
    for number in alive:
        os.kill(number, signal.SIGKILL)
    assert len(numbers) == 2
    assert not alive
    assert len(list(tmp_path.glob("*.kept"))) == kept


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent_and_keep_their_step(tmp_path, number):
    """Also with SIGKILL, after which the parent can tell them nothing; and with ctrl-c, which reaches the group."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), os.path.dirname(__file__), str(tmp_path), "hold_a_step"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while len(begun := list(tmp_path.glob("*.begun"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    if number is signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)
    process.wait()
    while len(list(tmp_path.glob("*.kept"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    while any(_files.process_lives(int(path.stem)) for path in begun) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(tmp_path.glob("*.kept"))) == 2
    assert not any(_files.process_lives(int(path.stem)) for path in begun)
    said = process.stderr.read()
    process.stderr.close()
    if number is signal.SIGKILL:
        assert said == ""
    else:
        assert "Process Spawn" not in said  # the parent, a script without regard's command line, has a traceback alone
