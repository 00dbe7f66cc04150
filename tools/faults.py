"""Training on four machines: one loses its process, one is cut off, one goes. The same weights as undisturbed.

    python -m tools.faults                  # needs root and Debian's iproute2; about six minutes on two cores
    python -m tools.faults --steps 60 --cut 20 --only killed-and-cut

Each machine is a network namespace of its own, joined to the others by a bridge in a fifth namespace, with a torchrun
of its own (`--max-restarts`), one process, and the same command. Nothing outside these namespaces is touched.
Undisturbed first; then

    killed-and-cut   SIGKILL to the process of one machine in a step; later the link of another is down for 20 s
    gone             a machine's processes end by SIGKILL and its link goes down for ever; a new one takes its place

What must hold: every torchrun ends with 0; weights, optimiser and log (without times) are those of the undisturbed run
bit for bit; the run's events.txt says what happened. The tool prints the events and a row of a Markdown table for each,
and ends with status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tools.network import Network, network

MACHINES = 4
# torchrun's own store keeps the addresses of processes from before a restart, and machines disagree on how often they
# were started again: with this the processes find each other through a store that is new in each round.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
SETTINGS = [
    *("--preset", "small", "--batch-size", "32", "--queue", "64", "--prototypes", "16", "--checkpoint-every", "5"),
    *("--log-every", "1", "--no-progress", "--device", "cpu", "--timeout", "45"),
]


class Training:
    """The same command on every machine, each under its own torchrun."""

    def __init__(self, net: Network, folder: Path, name: str, steps: int) -> None:
        """Start it on every machine."""
        self.net, self.folder, self.name, self.steps = net, folder, name, steps
        self.out = folder / name
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(MACHINES):
            self.start(number, number)

    def start(self, number: int, machine: int) -> None:
        """Start torchrun number `number` on a machine."""
        binaries = Path(sys.executable).parent
        host = f"is_host={int(number == 0)},join_timeout=300,read_timeout=30"
        command = [
            *("ip", "netns", "exec", self.net.machine(machine), str(binaries / "torchrun")),
            *("--nnodes", str(MACHINES), "--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"{self.net.address(0)}:29400", "--rdzv-id", self.name, "--rdzv-conf", host),
            *("--local-addr", self.net.address(machine), "--no-python", str(binaries / "regard"), "pretrain"),
            *("pictures.npy", "--out", self.name, "--steps", str(self.steps), *SETTINGS),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **FRESH_STORE}
        said = (self.folder / f"{self.name}-{machine}.txt").open("wb")
        self.agents[machine] = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=said, stderr=subprocess.STDOUT
        )

    def step(self) -> int:
        """The last step in the log."""
        try:
            with (self.out / "log.csv").open() as file:
                return max(
                    (int(row["step"]) for row in csv.DictReader(file) if (row["step"] or "").isdigit()), default=0
                )
        except (OSError, KeyError):
            return 0

    def reach(self, step: int, seconds: float = 400) -> None:
        """Wait until a step is in the log."""
        until = time.monotonic() + seconds
        while self.step() < step:
            if time.monotonic() > until or any(agent.poll() for agent in self.agents.values()):
                raise RuntimeError(f"{self.name}: step {step} was not reached. See {self.folder}")
            time.sleep(0.1)

    def worker(self, machine: int) -> int:
        """The process on a machine that trains: the one that torchrun has started."""
        for pid in self.net.processes(machine):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"/regard") for word in words) and b"--rdzv-id" not in words:
                return pid
        raise RuntimeError(f"machine {machine} trains nothing")

    def end(self, seconds: float = 600) -> list[int]:
        """Wait for every torchrun; their statuses."""
        until = time.monotonic() + seconds
        return [agent.wait(max(1.0, until - time.monotonic())) for agent in self.agents.values()]


def result(out: Path) -> dict[str, str]:
    """Digests of the last checkpoint, and of the log without times."""
    newest = max((out / "checkpoints").glob("step-*"))
    found = {
        name: hashlib.sha256((newest / name).read_bytes()).hexdigest() for name in ("model.safetensors", "state.pt")
    }
    with (out / "log.csv").open() as file:
        rows = [{k: v for k, v in row.items() if k != "samples_per_second"} for row in csv.DictReader(file)]
    return {**found, "log.csv": hashlib.sha256(repr(rows).encode()).hexdigest(), "step": newest.name}


def killed_and_cut(training: Training, cut: float) -> None:
    """One process is killed, then one machine is cut off for a while."""
    training.reach(training.steps // 4)
    time.sleep(0.05)  # into the next step
    os.kill(training.worker(2), signal.SIGKILL)
    training.reach(training.steps * 5 // 8)
    training.net.link(3, "down")
    time.sleep(cut)
    training.net.link(3, "up")


def gone(training: Training, cut: float) -> None:
    """One machine ends for ever, a new one takes its place."""
    training.reach(training.steps // 2)
    training.net.link(1, "down")
    for pid in training.net.processes(1):
        os.kill(pid, signal.SIGKILL)
    training.agents.pop(1).wait()
    training.net.add(MACHINES)
    training.start(1, MACHINES)


CASES: dict[str, Callable[[Training, float], None]] = {"killed-and-cut": killed_and_cut, "gone": gone}


def main() -> int:
    """Run the cases, print what happened; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps of each run; default 40")
    parser.add_argument("--cut", type=float, default=20.0, help="seconds for which a machine is cut off; default 20")
    parser.add_argument("--only", choices=CASES, help="one case; default all")
    parser.add_argument("--keep", type=Path, help="a folder for runs and what they say; default a temporary one")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        pictures = np.random.default_rng(0).integers(0, 256, (320, 3, 32, 32), dtype=np.uint8)
        np.save(folder / "pictures.npy", pictures)
        rows, wrong, expected = [], 0, {}
        for name, disturb in {"undisturbed": None, **CASES}.items():
            if given.only and name not in ("undisturbed", given.only):
                continue
            began = time.monotonic()
            with network(MACHINES) as net:
                training = Training(net, folder, name, given.steps)
                if disturb is not None:
                    disturb(training, given.cut)
                statuses = training.end()
            found = result(folder / name)
            expected = expected or found
            same = found == expected and not any(statuses)
            wrong += not same
            restarts = (folder / name / "events.txt").read_text().count("go on after")
            seconds = time.monotonic() - began
            rows.append(f"| {name} | {seconds:.0f} | {restarts} | {statuses} | {'yes' if same else 'NO'} |")
            print(f"== {name}\n{(folder / name / 'events.txt').read_text()}", flush=True)
    print("| run | seconds | restarts | statuses | same weights, optimiser and log |\n|---|---|---|---|---|")
    print("\n".join(rows))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
