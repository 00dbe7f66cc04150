"""Pretraining from an S3 server (moto) on the loopback: the weights of the same shards on a disk, bit for bit.

    make s3                                    # installs moto into .s3/, then runs this; about two minutes
    python -m tools.s3 .s3/bin/moto_server

With one process and with two: from the disk; from the server; from the server, with kill -9 in the middle and the same
command again. The tool prints a table, and ends with status 1 if the weights of a run differ.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from regard.training import latest

SHARDS, EACH, STEPS = 12, 40, 40
SETTINGS = [
    *("--preset", "small", "--backbone-options", json.dumps({"widths": [8, 16], "depths": [1, 1]}), "--size", "16"),
    *("--canvas", "16", "--local", "1", "--local-size", "8", "--hidden", "16", "--dim", "8", "--prototypes", "8"),
    *("--batch-size", "16", "--queue", "32", "--steps", str(STEPS), "--checkpoint-every", "5", "--mixed-shards", "4"),
    *("--device", "cpu", "--no-progress"),
]


def write_shards(folder: Path) -> None:
    """Tars of random pictures."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for place in range(EACH):
                file = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(file, "PNG")
                member = tarfile.TarInfo(f"{shard:03d}{place:03d}.png")
                member.size = len(file.getvalue())
                tar.addfile(member, io.BytesIO(file.getvalue()))


@contextlib.contextmanager
def served(program: str) -> Iterator[dict[str, str]]:
    """A server; the environment in which s3fs finds it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], **quiet)  # type: ignore[call-overload]
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{program} does not answer")
            time.sleep(0.1)
        address = f"http://127.0.0.1:{port}"
        names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        yield os.environ | names | {"AWS_ENDPOINT_URL": address, "AWS_ENDPOINT_URL_S3": address, "OMP_NUM_THREADS": "1"}
    finally:
        server.kill()
        server.wait()


UPLOAD = "import s3fs, sys; s = s3fs.S3FileSystem(); s.mkdir('mine'); s.put(sys.argv[1], 'mine/shards', recursive=True)"


def pretrain(pictures: str, out: Path, processes: int, environment: dict[str, str], killed: bool = False) -> None:
    """Run the command, if `killed` with an end by SIGKILL in the middle, and again."""
    command = [
        *(str(Path(sys.executable).parent / "regard"), "pretrain", pictures, "--out", str(out), *SETTINGS),
        *("--cache", str(out.with_suffix(".cache")), "--devices", str(processes)),
    ]
    said = out.with_suffix(".txt")
    for last in (False, True) if killed else (True,):
        with said.open("ab") as file:
            running = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        if last and running.wait(600):
            raise RuntimeError(said.read_text()[-2000:])
        if last:
            return
        until = time.monotonic() + 300
        while (newest := latest(out) if out.exists() else None) is None or newest.step < 10:
            if running.poll() is not None or time.monotonic() > until:
                raise RuntimeError(said.read_text()[-2000:])
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        print(f"killed after the checkpoint of step {newest.step}", file=sys.stderr)


def weights(out: Path) -> bytes:
    """The weights of the last step."""
    checkpoint = latest(out)
    if checkpoint is None or checkpoint.step != STEPS:
        raise RuntimeError(f"{out} has not finished")
    return (checkpoint.folder / "model.safetensors").read_bytes()


def main() -> None:
    """Print the table."""
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary, served(sys.argv[1]) as environment:
        folder = Path(temporary)
        shards = folder / "shards"
        write_shards(shards)
        subprocess.run([sys.executable, "-c", UPLOAD, f"{shards}/"], env=environment, check=True)
        print(f"{SHARDS} shards of {EACH} pictures, {STEPS} steps\n")
        print("| processes | s3:// | s3://, after kill -9 and again |\n|---|---|---|", flush=True)
        for processes in (1, 2):
            disk = folder / f"disk{processes}"
            pretrain(str(shards), disk, processes, environment)
            cells = []
            for killed in (False, True):
                out = folder / f"s3-{processes}-{killed}"
                pretrain("s3://mine/shards", out, processes, environment, killed)
                same = weights(out) == weights(disk)
                wrong += not same
                cells.append("the bits of the disk" if same else "OTHER WEIGHTS")
            print(f"| {processes} | {' | '.join(cells)} |", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
