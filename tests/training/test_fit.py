"""A run that was stopped, or killed, and resumed gives the weights of the run that was not."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.fabric.strategies import DataParallelStrategy
from training.tiny_task import Data, Tiny, run

from regard._problem import Problem
from regard.training import FitSettings, Running, fit, latest


def same(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"workers": 2}, {"clip": 0.1}])
def test_a_run_in_two_parts_is_the_whole_run(tmp_path, options):
    whole, fitted = run(tmp_path / "whole")
    assert fitted.steps == 23
    if "accumulate" in options or "clip" in options:
        whole, _ = run(tmp_path / "with", **options)

    class Stopped(Exception):
        pass

    def stop(step):
        if step == 14:  # the third step of the third epoch; the last checkpoint is of step 12
            raise Stopped

    with pytest.raises(Stopped):
        run(tmp_path / "parts", after_step=stop, **options)
    assert latest(tmp_path / "parts").step == 12
    parts, fitted = run(tmp_path / "parts", **options)
    assert fitted.resumed == 12
    assert same(whole, parts)
    assert torch.equal(whole.seen, parts.seen)
    again, fitted = run(tmp_path / "parts", **options)  # nothing left to do
    assert fitted.steps == 0
    assert same(whole, again)


@pytest.fixture
def interruptible():
    """Ctrl-c is a KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_a_keyboard_interrupt_and_nothing_stays_behind(tmp_path):
    def interrupt(step):
        if step == 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", after_step=interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole, _ = run(tmp_path / "whole")
    parts, fitted = run(tmp_path / "parts")
    assert fitted.resumed == 6
    assert same(whole, parts)


def test_a_batch_keeps_its_precision(tmp_path):
    """Mixed precision rounds what layers compute, not the data: crops are cut by numbers of 32 bits."""
    dtypes = set()

    class Looking(Tiny):
        def loss(self, batch):
            dtypes.update(x.dtype for x in batch)
            return super().loss(batch)

    run(tmp_path, steps=1, task=Looking(), precision="bf16-mixed")
    assert dtypes == {torch.float32}


@pytest.mark.parametrize("strategy", [DataParallelStrategy(), "ddp_spawn"])
def test_strategies_that_would_not_train_this_model_are_refused(tmp_path, strategy):
    with pytest.raises(Problem, match="Take ddp"):
        run(tmp_path, steps=1, strategy=strategy)


def test_lars_resumes_too(tmp_path):
    torch.manual_seed(0)
    tasks = [Tiny(optimizer="lars")]
    tasks += [Tiny(optimizer="lars") for _ in range(2)]
    tasks[1].load_state_dict(tasks[0].state_dict())
    whole, _ = run(tmp_path / "whole", task=tasks[0])
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "parts", task=tasks[1], after_step=lambda step: 1 / (step - 9))
    parts, fitted = run(tmp_path / "parts", task=tasks[2])
    assert fitted.resumed == 8
    assert same(whole, parts)


def script(*arguments):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("tiny_task.py")), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def kill_when(process, there):
    deadline = time.monotonic() + 120
    while not there():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_killed_in_an_epoch_and_while_a_checkpoint_is_written(tmp_path):
    whole, _ = run(tmp_path / "whole")
    out = tmp_path / "killed"
    log = out / "log.csv"
    # In the middle of an epoch (5 steps), and after the checkpoint of step 4.
    kill_when(script(out, 23), lambda: log.is_file() and latest(out) is not None)
    first = latest(out).step
    # While the next checkpoint is half written: its place beside exists, and writing takes long.
    process = script(out, 23, 0.5)
    kill_when(process, lambda: any((out / "checkpoints").glob(".step-*.tmp/state.pt")))
    assert latest(out).step >= first
    assert any((out / "checkpoints").glob(".step-*.tmp")), "nothing was being written"
    parts, fitted = run(out)
    assert fitted.resumed >= 4
    assert same(whole, parts)
    assert not any((out / "checkpoints").glob(".step-*.tmp"))


def logged(out):
    """The log of a run, without the column that depends on the time."""
    with (out / "log.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "samples_per_second"} for row in csv.DictReader(file)]


@pytest.mark.parametrize("torn", ["", "1", "14,0.5", "140,0.1,0.2,0.3,0.4\n"])
def test_the_log_of_a_resumed_run_is_that_of_the_whole(tmp_path, torn):
    """Whatever step it was resumed from, and though a killed process may have written half a line."""
    run(tmp_path / "whole", log_every=3)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "parts", log_every=3, after_step=lambda step: 1 / (step - 14))
    with (tmp_path / "parts" / "log.csv").open("a") as file:
        file.write(torn)
    run(tmp_path / "parts", log_every=3)
    assert [int(row["step"]) for row in logged(tmp_path / "whole")] == [1, 3, 6, 9, 12, 15, 18, 21, 23]
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path, limited_files):
    """When one more checkpoint does not fit, those that are there stay, and space is all that a rerun needs."""
    stopped = tmp_path / "full"

    def wide():
        torch.manual_seed(0)
        return Tiny(width=4096)

    def shrink(step):
        if step == 10:
            import resource

            while not (stopped / "checkpoints" / "step-00000008").exists():  # a thread writes it
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    told = r"no space is left on the disk of .*full\. Step 8 is kept\. Make space, then rerun"
    with limited_files(1 << 30), pytest.raises(Problem, match=told):
        run(stopped, task=wide(), after_step=shrink)
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir()) == ["step-00000004", "step-00000008"]
    parts, fitted = run(stopped, task=wide())
    whole, _ = run(tmp_path / "whole", task=wide())
    assert fitted.resumed == 8
    assert same(whole, parts)


def test_a_run_has_one_writer(tmp_path):
    held = []

    def look(step):
        held.append((tmp_path / ".lock").is_file())

    run(tmp_path, steps=2, after_step=look)
    assert held == [True, True]
    assert not (tmp_path / ".lock").exists()


@pytest.mark.once
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_spares_the_loaders(tmp_path, number):
    """Loaders get it too; the step is finished with their batches, and the run ends in order."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}", "OMP_NUM_THREADS": "1"}
    code = (
        "import signal, sys, time\n"
        "from training.tiny_task import run\n"
        "from regard._stop import Stopped, terminable\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    with terminable(): run(sys.argv[1], 4000, workers=2, after_step=lambda step: time.sleep(0.02))\n"
        "except Stopped as stopped: print(stopped.kept); sys.exit(stopped.status)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while latest(tmp_path) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, number)
    said, complained = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert complained == ""
    assert said.startswith(f"step {latest(tmp_path).step} of 4000 is kept in")


def test_the_log_has_every_step_once(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, log_every=1, after_step=lambda step: 1 / (step - 10))
    run(tmp_path, log_every=1)
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 24))
    assert all(float(row["twice"]) == pytest.approx(2 * float(row["loss"]), rel=1e-4) for row in rows)
    assert float(rows[-1]["lr"]) < float(rows[4]["lr"]) == pytest.approx(1e-2)


def test_tensorboard(tmp_path):
    run(tmp_path, log="tensorboard", steps=3)
    assert any((tmp_path / "tensorboard").iterdir())
    with pytest.raises(ValueError, match="log"):
        run(tmp_path / "other", log="paper", steps=3)


def test_what_is_not_resumed(tmp_path):
    run(tmp_path, steps=8)
    with pytest.raises(Problem, match="width is 8 there and 9 here"):
        run(tmp_path, steps=9, task=Tiny(width=9))
    with pytest.raises(Problem, match="more than 5"):
        run(tmp_path, steps=5)
    fresh, fitted = run(tmp_path, steps=8, resume=False)
    assert fitted.resumed == 0
    newest = latest(tmp_path).folder
    content = (newest / "state.pt").read_bytes()
    (newest / "state.pt").write_bytes(content[:-1] + b"x")
    with pytest.raises(Problem, match="corrupt") as problem:
        run(tmp_path, steps=9)
    assert "\n" not in str(problem.value)
    (newest / "state.pt").unlink()
    with pytest.raises(Problem, match="not whole"):
        run(tmp_path, steps=9)
    # The one before it is still there.
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    again, fitted = run(tmp_path, steps=8)
    assert fitted.resumed == 4
    assert same(fresh, again)


def test_bfloat16(tmp_path):
    task, _ = run(tmp_path, steps=6, precision="bf16-mixed")
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in task.parameters())


def test_a_data_set_smaller_than_a_batch(tmp_path):
    settings = FitSettings(steps=3, batch_size=8)
    assert fit(Tiny(), Data(5), settings, out=tmp_path, running=Running(progress=False)).steps == 3


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Problem, match=r"pip install .*tensorboard"):
        run(tmp_path, log="tensorboard", steps=3)
