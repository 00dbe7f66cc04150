"""Two processes under torchrun, one killed in a step: started again, they end with the weights of an undisturbed run.

`tools/faults.py` does it with four machines in network namespaces, of which one is cut off and one goes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from regard.training import latest
from regard.training._checkpoint_writer import CheckpointWriter, copied

HERE = Path(__file__).parent
SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(HERE)!r})
import torch
torch.set_num_threads(1)
import tiny_task
out, killed = sys.argv[1:]
def wait(step):
    if killed == "killed" and step >= 6:  # the checkpoint of step 4 is there; now there is time to be killed
        time.sleep(0.1)
tiny_task.run(out, steps=60, device="cpu", strategy="ddp", log_every=1, after_step=wait)
"""


def torchrun(out, killed):
    # torchrun keeps the addresses of processes from before a restart in a store of its own, unless it is told so.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **fresh, "PYTHONPATH": str(HERE.parents[1] / "src")}
    words = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", out.parent / "script.py", out, killed]
    return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *map(str, words)], env=environment)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes")
def test_killed_and_started_again(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert torchrun(tmp_path / "whole", "whole").wait(240) == 0
    agent = torchrun(tmp_path / "killed", "killed")
    log, deadline = tmp_path / "killed" / "log.csv", time.monotonic() + 240
    while not log.is_file() or len(log.read_text().splitlines()) < 9:
        assert time.monotonic() < deadline
        assert agent.poll() is None
        time.sleep(0.05)
    workers = [p for p in psutil.Process(agent.pid).children() if "script.py" in " ".join(p.cmdline())]
    assert len(workers) == 2
    os.kill(max(p.pid for p in workers), signal.SIGKILL)
    assert agent.wait(240) == 0
    whole, killed = (latest(tmp_path / name) for name in ("whole", "killed"))
    assert whole.step == killed.step == 60
    for name in ("model.safetensors", "state.pt"):
        assert (whole.folder / name).read_bytes() == (killed.folder / name).read_bytes()
    said = (tmp_path / "killed" / "events.txt").read_text()
    assert said.count("2 processes begin\n") == 1
    assert said.count("2 processes go on after step ") == 1
    assert said.count("started again (1)") == 1
    assert said.splitlines()[-1].endswith("2 processes end after step 60")
    assert not (tmp_path / "killed" / ".lock").exists()


def test_a_checkpoint_is_of_the_moment_it_was_asked_for(tmp_path, monkeypatch):
    """The thread writes what the weights were, however they change meanwhile; and nobody waits for it."""
    import threading

    import torch

    from regard.training import _checkpoints

    whole, may_write = _checkpoints.save, threading.Event()

    def slow(*arguments):
        may_write.wait(60)
        return whole(*arguments)

    monkeypatch.setattr(_checkpoints, "save", slow)
    weight = torch.zeros(3)
    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, {"weight": weight}, {"momentum": [weight, {"at": (weight, 1)}]}, {"kind": "tiny"})
        weight.add_(1)
        assert not list(tmp_path.glob("step-*"))  # absent until it is whole
        may_write.set()
        writer.wait()
        checkpoint = _checkpoints.newest(tmp_path)
        assert checkpoint.weights()["weight"].tolist() == [0, 0, 0]
        assert checkpoint.state()["momentum"][1]["at"][0].tolist() == [0, 0, 0]
    assert copied((weight, [2])) == (pytest.approx(weight), [2])


def test_what_goes_wrong_in_the_thread_is_raised(tmp_path, monkeypatch):
    import torch

    from regard.training import _checkpoints

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_checkpoints, "save", full)
    writer = CheckpointWriter(tmp_path)
    writer.save(1, {"weight": torch.zeros(1)}, {}, {"kind": "tiny"})
    with pytest.raises(OSError, match="No space left"):
        writer.save(2, {"weight": torch.zeros(1)}, {}, {"kind": "tiny"})
    writer.save(3, {"weight": torch.zeros(1)}, {}, {"kind": "tiny"})
    with pytest.raises(OSError, match="No space left"), writer:
        pass
