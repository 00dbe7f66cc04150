"""What a step of SwAV costs on many processes: a simulator, checked against runs on 1, 2 and 4, asked for 8 to 512.

    python -m benchmarks.step_cost             # predictions, beside the runs in results/step_cost.json
    python -m benchmarks.step_cost --measure   # those runs anew, in network namespaces: root, iproute2, five minutes

The simulator keeps a clock for every process. Computing advances each by its own time (with `jitter`, a random one); an
all-reduce is its messages one by one, each of which waits for its sender. Gradients go beside the backward pass, in
buckets; exchanges of norms and codes stand in its way.

Measured are runs of `regard pretrain`, each process in a namespace, with links that hold every frame for a while
(`tools/network.py`). Computing is what one process alone takes for its part of the batch, more processes than cores
take turns. A message of gloo is two trips, as the receiver says that it is ready before the sender sends; a trip is
half a round trip of TCP, measured in that network, and what the software adds to a message is fitted to one run, that
of two processes without delay. The other runs are predicted.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

STEPS, EVERY, BATCH = 12, 2, 64
TRIPS = 2  # of a message of gloo
RESULTS = Path(__file__).parent / "results" / "step_cost.json"


@dataclass(frozen=True)
class Exchanges:
    """What a step sends: calls and bytes of norms (half of the calls forward), codes and gradients; see swav_bytes."""

    norms: int
    norm_bytes: float
    codes: int
    code_bytes: float
    gradient_bytes: float
    others: int = 0  # small ones that wait as those of norms do, such as the running statistics
    buckets: int = 1


@dataclass(frozen=True)
class Cluster:
    """Seconds of a step of a process alone, seconds of a message far and near, bytes per second, and how sums are made.

    `near_processes`: neighbours that are near, on one machine.
    `ring`: whether an all-reduce is a ring (2 (n - 1) messages in a row), as gloo's; else a tree (2 log2 n), as NCCL's
        of few bytes.
    `jitter`: standard deviation of the computing between two exchanges, as a share of it.
    """

    compute: float
    latency: float
    bandwidth: float
    near_latency: float = 0.0
    near_processes: int = 1
    ring: bool = True
    jitter: float = 0.0


def all_reduce(clocks: np.ndarray, size: float, group: int, cluster: Cluster) -> np.ndarray:
    """The clocks after the sum of `size` bytes over groups of neighbours.

    >>> two = Cluster(0, latency=1.0, bandwidth=10.0)
    >>> all_reduce(np.array([0.0, 5.0]), 20, 2, two)  # two messages of 10 bytes, after the slower one
    array([9., 9.])
    """
    if group == 1:
        return clocks
    latency = cluster.near_latency if group <= cluster.near_processes else cluster.latency
    blocks = clocks.reshape(-1, group)
    message = latency + size / group / cluster.bandwidth
    if cluster.ring:
        for _ in range(2 * (group - 1)):
            blocks = np.maximum(blocks, np.roll(blocks, 1, axis=1)) + message
        return blocks.reshape(-1)
    depth = (group - 1).bit_length()
    slowest = np.broadcast_to(blocks.max(axis=1, keepdims=True), blocks.shape)
    moved = 2 * (group - 1) / group * size / cluster.bandwidth
    return (slowest + 2 * depth * latency + moved).reshape(-1)


def step_seconds(sent: Exchanges, cluster: Cluster, processes: int, norm_processes: int = 0, seed: int = 0) -> float:
    """Seconds of a step; `norm_processes` as the option of `regard pretrain`: 0 all, 1 none."""
    random = np.random.default_rng(seed)
    together = norm_processes or processes
    clocks = np.zeros(processes)
    norms = sent.norms if together > 1 and processes > 1 else 0
    codes, others = (sent.codes, sent.others) if processes > 1 else (0, 0)

    def computed(seconds: float) -> np.ndarray:
        return clocks + seconds * np.maximum(0.1, 1 + cluster.jitter * random.standard_normal(processes))

    forward, backward = cluster.compute / 3, cluster.compute * 2 / 3
    count = max(1, norms // 2)
    for _ in range(count):
        clocks = computed(forward / count)
        clocks = all_reduce(clocks, sent.norm_bytes / max(1, norms), together if norms else 1, cluster)
    for _ in range(codes):
        clocks = all_reduce(clocks, sent.code_bytes / codes, processes, cluster)
    arrived = clocks.copy()  # gradients, on their own clock
    parts = max(count, sent.buckets)
    for part in range(parts):
        clocks = computed(backward / parts)
        if norms and part < count:
            clocks = all_reduce(clocks, sent.norm_bytes / norms, together, cluster)
        if processes > 1 and (part + 1) * sent.buckets // parts > part * sent.buckets // parts:
            bucket = sent.gradient_bytes / sent.buckets
            arrived = all_reduce(np.maximum(arrived, clocks), bucket, processes, cluster)
    for _ in range(others):
        clocks = all_reduce(clocks, 0.0, processes, cluster)
    return float(np.maximum(clocks, arrived if processes > 1 else clocks).max())


def costliest(sent: Exchanges, cluster: Cluster, processes: int, norm_processes: int) -> tuple[str, float]:
    """The exchange that costs most, and the seconds that a step would save without it."""
    whole = step_seconds(sent, cluster, processes, norm_processes)
    without = {
        "norms": replace(sent, norms=0),
        "codes": replace(sent, codes=0),
        "gradients": replace(sent, gradient_bytes=0.0, buckets=1),
    }
    saved = {name: whole - step_seconds(less, cluster, processes, norm_processes) for name, less in without.items()}
    name = max(saved, key=saved.__getitem__)
    return name, saved[name]


# Preset small, 100 prototypes, 3 iterations: benchmarks/swav_bytes.py counts them.
MEASURED = Exchanges(norms=81, norm_bytes=29_868, codes=7, code_bytes=4_016, gradient_bytes=1_453_952, others=2)
# ResNet-50, 3000 prototypes, two sizes of views: docs/scale.md has the arithmetic. DDP's buckets have 25 MB.
PUBLISHED = Exchanges(
    norms=432, norm_bytes=920_000, codes=7, code_bytes=120_000, gradient_bytes=114e6, others=2, buckets=5
)
# Assumed: 64 pictures of 2 large and 6 small views in 300 ms; 8 processes a machine; sums by trees.
ASSUMED = Cluster(0.3, latency=25e-6, bandwidth=12.5e9, near_latency=8e-6, near_processes=8, ring=False, jitter=0.02)
CLUSTERS = {
    "100 Gb/s for each process, 25 us": ASSUMED,
    "10 Gb/s for each process, 100 us": replace(ASSUMED, latency=100e-6, bandwidth=1.25e9),
}


def predictions() -> list[str]:
    """A Markdown table for 8, 64 and 512 processes."""
    lines = ["| network | norms over | processes | step (ms) | efficiency | costs most |", "|---|---|---|---|---|---|"]
    for name, cluster in CLUSTERS.items():
        for norms, said in ((0, "all"), (8, "8 neighbours"), (1, "each alone, or group norms")):
            for processes in (8, 64, 512):
                seconds = step_seconds(PUBLISHED, cluster, processes, norms)
                what, saved = costliest(PUBLISHED, cluster, processes, norms)
                lines.append(
                    f"| {name} | {said} | {processes} | {1e3 * seconds:.0f} | {100 * cluster.compute / seconds:.0f} % "
                    f"| {what}, {1e3 * saved:.1f} ms |"
                )
    return lines


ECHO = """
import socket, sys, time
if sys.argv[1] == "serve":
    link = socket.create_server((sys.argv[2], 5555)).accept()[0]
    while link.recv(1): link.sendall(b".")
else:
    for _ in range(100):
        try: link = socket.create_connection((sys.argv[2], 5555)); break
        except OSError: time.sleep(0.1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(50):
        start = time.monotonic(); link.sendall(b"."); link.recv(1); times.append(time.monotonic() - start)
    print(sorted(times)[25] / 2)
"""


def one_way(net) -> float:
    """Half a round trip between the first two machines, in seconds."""
    inside = ["ip", "netns", "exec"]
    server = subprocess.Popen([*inside, net.machine(1), sys.executable, "-c", ECHO, "serve", net.address(1)])
    client = [*inside, net.machine(0), sys.executable, "-c", ECHO, "ask", net.address(1)]
    try:
        return float(subprocess.run(client, capture_output=True, text=True, check=True, timeout=60).stdout)
    finally:
        server.kill()


def measured(folder: Path, processes: int, delay: float | None, norms: int, batch: int) -> tuple[float, float]:
    """The seconds of a step of `regard pretrain`, and of a message one way."""
    from tools.network import network

    binaries = Path(sys.executable).parent
    name = f"{processes}-{delay}-{norms}-{batch}"
    with network(max(2, processes), delay) as net:
        way = one_way(net)
        running = []
        for number in range(processes):
            command = [
                *("ip", "netns", "exec", net.machine(number), str(binaries / "torchrun"), "--nnodes", str(processes)),
                *("--nproc-per-node", "1", "--node-rank", str(number), "--master-addr", net.address(0)),
                *("--master-port", "29400", "--no-python", str(binaries / "regard"), "pretrain", "pictures.npy"),
                *("--out", name, "--preset", "small", "--steps", str(STEPS), "--batch-size", str(batch)),
                *("--queue", "0", "--prototypes", "100", "--iterations", "3", "--device", "cpu", "--no-progress"),
                *("--log-every", str(EVERY), "--norm-processes", str(norms)),
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
            said = (folder / f"{name}-{number}.txt").open("wb")
            running.append(
                subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
            )
        statuses = [one.wait(400) for one in running]
        if any(statuses):
            raise RuntimeError((folder / f"{name}-0.txt").read_text()[-2000:])
    with (folder / name / "log.csv").open() as file:
        rows = [(int(row["step"]), float(row["samples_per_second"])) for row in csv.DictReader(file)]
    ends = [(step, step * batch / speed) for step, speed in rows if step >= EVERY]
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(ends)), way


@dataclass(frozen=True)
class Point:
    """A measured run: processes, those that share norms (0 all), samples of a step; seconds of a trip and of a step."""

    processes: int
    norms: int
    batch: int
    trip: float
    seconds: float


def measure() -> None:
    """Run 1, 2 and 4 processes, and keep what they took."""
    alone = [(1, None, 0, BATCH // n) for n in (1, 2, 4)]
    delayed = [(n, delay, 0, BATCH) for delay in (None, 1e-3, 4e-3) for n in (2, 4)]
    fewer = [(4, 4e-3, 2, BATCH), (4, 4e-3, 1, BATCH)]
    points = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.save(folder / "pictures.npy", np.random.default_rng(0).integers(0, 256, (640, 3, 32, 32), dtype=np.uint8))
        for processes, delay, norms, batch in (*alone, *delayed, *fewer):
            seconds, trip = measured(folder, processes, delay, norms, batch)
            points.append(Point(processes, norms, batch, trip, seconds))
            print(points[-1], file=sys.stderr, flush=True)
    kept = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "points": [asdict(point) for point in points]}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")


def fitted(point: Point, compute: float) -> float:
    """The seconds that software adds to a message, so that the simulator is right about a run."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        guess = step_seconds(MEASURED, Cluster(compute, TRIPS * point.trip + middle, 1e9), point.processes)
        low, high = (middle, high) if guess < point.seconds else (low, middle)
    return low


def check() -> list[str]:
    """The measured runs beside what the simulator says, as a Markdown table."""
    kept = json.loads(RESULTS.read_text())
    points = [Point(**point) for point in kept["points"]]
    alone = {BATCH // point.batch: point.seconds for point in points if point.processes == 1}
    lines = [
        f"{kept['cores']} cores, load average {kept['load']:.1f}",
        "",
        "| processes | norms over | trip (ms) | measured (ms) | simulated (ms) | error | efficiency, measured |",
        "|---|---|---|---|---|---|---|",
    ]
    software = None
    for point in points:
        n, norms = point.processes, {0: "all", 1: "each alone"}.get(point.norms, point.norms)
        measured_ms = f"{1e3 * point.seconds:.0f}"
        if n == 1:
            lines.append(f"| 1 | - | - | {measured_ms}, batch {point.batch} | taken as it is | - | - |")
            continue
        compute = alone[n] * max(1.0, n / kept["cores"])
        first = software is None
        software = fitted(point, compute) if software is None else software
        guess = step_seconds(MEASURED, Cluster(compute, TRIPS * point.trip + software, 1e9), n, point.norms)
        error = f"{100 * (guess / point.seconds - 1):+.0f} %"
        if first:
            error = f"fitted: software adds {1e6 * software:.0f} us a message"
        useful = alone[1] / n * max(1.0, n / kept["cores"]) / point.seconds
        lines.append(
            f"| {n} | {norms} | {1e3 * point.trip:.2f} | {measured_ms} | {1e3 * guess:.0f} | {error} "
            f"| {100 * useful:.0f} % |"
        )
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run 1, 2 and 4 processes anew; needs root")
    if parser.parse_args().measure:
        measure()
    print("\n".join([*check(), "", *predictions()]))


if __name__ == "__main__":
    main()
