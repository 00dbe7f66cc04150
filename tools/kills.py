"""Kill each long command at random moments, rerun it, and compare the result with that of an undisturbed run.

    python tools/kills.py                        # 20 moments for each command, about half an hour
    python tools/kills.py train --moments 50 --seed 7

A moment is drawn between the end of the imports and the end of an undisturbed run, a signal from SIGINT, SIGTERM and
SIGKILL, and a target: the command's own process, the whole group (as ctrl-c in a shell), or one of its workers. Then
the command is rerun until it ends well. What must hold: SIGINT and SIGTERM to the command end it with 130 and 143, one
line and no traceback; nothing of it is left running; the rerun gives the same bytes (apart from times) as the
undisturbed run; no temporary file or lock is left. The tool ends with status 1 otherwise.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

MAIN = "from regard.cli import main; main()"
TINY_DEMO = """
from regard.demo import DemoSettings
small = DemoSettings({"train": 40, "val": 4, "test": 6, "pairs": 4}, pretraining_steps=12, epochs=2, entries=2)
DemoSettings.usual = classmethod(lambda cls: small)
if __name__ == "__main__":
    from regard.cli import main
    main()
"""
TINY = {"width": 16, "heads": 2, "layers": 1, "feed-forward": 32, "flat": 16, "fused": 24, "words": 8, "batch": 8}
TIMES = {"samples_per_second"}  # columns of a log that differ between runs
# In a summary and in a report.
SECONDS = re.compile(rb'(?:"|&quot;)seconds(?:"|&quot;): (?:[0-9.e-]+|null)|, in [0-9.]+ (?:seconds|minutes|hours)')
COMMANDS = ("pretrain", "features", "train", "patience", "vqa", "compare", "demo")


class Bench:
    """A folder with tiny data, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        """Draw the scenes, make their features, and measure how long the imports take."""
        self.folder = folder
        self.run("scenes", folder / "scenes", "--train", 120, "--val", 12, "--test", 12, "--pairs", 12, "--size", 32)
        from regard.backbones import make_backbone, save_backbone

        save_backbone(make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2), folder / "net")
        splits = [f"--split={name}" for name in ("train", "val", "test", "pairs")]
        self.splits = splits
        self.run("features", folder / "scenes", "--backbone", folder / "net", "--out", folder / "features", *splits)
        self._write_table(folder / "questions.csv")
        (folder / "demo.py").write_text(TINY_DEMO)
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", "import regard.cli, regard.training._loop"], check=True)
        self.imports = time.monotonic() - start

    def _write_table(self, path: Path) -> None:
        """Write questions about scenes as a table of one's own."""
        from regard.vqa import read_questions

        records = read_questions(self.folder / "scenes").records
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=";").writerows(
                [("image", "question", "label"), *((r.picture, r.question, r.answers[0]) for r in records)]
            )

    def run(self, *arguments: object) -> None:
        """Run a command that must succeed."""
        command = [sys.executable, "-c", MAIN, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, arguments))} failed: {done.stderr}")

    def command(self, name: str, out: Path) -> list[str]:
        """The words of a long command that writes to `out`."""
        here, scenes, features = self.folder, self.folder / "scenes", ["--features", self.folder / "features"]
        tiny = [f"--{option}={value}" for option, value in TINY.items()]
        words: dict[str, list[object]] = {
            "pretrain": [
                *("pretrain", scenes / "train", "--steps", 60, "--batch-size", 16, "--prototypes", 10, "--queue", 0),
                *("--checkpoint-every", 7, "--log-every", 3, "--backbone-options", '{"widths": [8], "depths": [1]}'),
            ],
            "features": ["features", scenes, "--backbone", "small", "--size", 96, "--batch", 1, *self.splits],
            "train": ["train", scenes, *features, "--preset", "small", *tiny, "--epochs", 2, "--checkpoint-every", 20],
            "compare": [
                *("compare", scenes, *features, "--preset", "small", *tiny, "--epochs", 1, "--seeds", 1),
                *("--attention", "discrete-softmax", "--attention", "continuous-softmax", "--unseen", "pairs"),
                *("--checkpoint-every", 20),
            ],
            "vqa": [
                *("vqa", scenes / "train", here / "questions.csv", "--backbone", here / "net", *tiny, "--epochs", 2),
                *("--checkpoint-every", 20),
            ],
            "demo": ["demo"],
        }
        words["patience"] = [*words["train"], "--epochs", 3, "--validation", "val", "--patience", 1]
        start = [sys.executable, str(here / "demo.py")] if name == "demo" else [sys.executable, "-c", MAIN]
        return [*start, *map(str, words[name]), "--out", str(out)]


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a command in a group of its own, with ctrl-c as a terminal gives it."""
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def group(leader: int) -> list[int]:
    """The processes of a session that live."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def workers(leader: int) -> list[int]:
    """The worker processes of a command: those that multiprocessing spawned."""
    found = []
    for number in group(leader):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if b"spawn_main" in words:
            found.append(number)
    return found


def result(out: Path) -> dict[str, str]:
    """What a command made, by the names of files: hashes of those that do not depend on the time."""
    found = {}
    for path in sorted(out.rglob("*")):
        relative = path.relative_to(out).as_posix()
        newest = "checkpoints/" not in relative or path.parent == max(path.parent.parent.iterdir())
        if path.is_dir() or not newest or path.name in ("done", "origins.bin"):
            continue
        content = path.read_bytes()
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                rows = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
            content = repr(rows).encode()
        elif path.suffix in (".json", ".html"):
            content = SECONDS.sub(b"", content.replace(str(out).encode(), b"OUT"))
        found[relative] = hashlib.sha256(content).hexdigest()[:12]
    return found


def disturbed(bench: Bench, name: str, out: Path, draw: random.Random, seconds: float) -> tuple[str, list[str]]:
    """Kill a command once at a random moment; return what was done ("" if it had ended before), and what was wrong."""
    number, target = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]), draw.choice(["self", "group"])
    if name in ("compare", "demo") and draw.random() < 0.3:
        target = "worker"
    process = start(bench.command(name, out))
    time.sleep(draw.uniform(bench.imports, max(seconds, bench.imports + 0.5)))
    victims = workers(process.pid) if target == "worker" else []
    if target == "worker" and not victims:
        target = "self"
    if process.poll() is not None:
        process.communicate()
        return "", []
    if target == "group":
        os.killpg(process.pid, number)
    else:
        os.kill(draw.choice(victims) if victims else process.pid, number)
    try:
        _, said = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "did not end", [f"{number.name} to {target}: did not end"]
    what, status = f"{number.name} to {target}", process.returncode
    wrong = []
    # Before the command line is there and after it is gone, the signal ends the process itself: to a shell the same.
    if number is not signal.SIGKILL and target != "worker" and status not in (0, 128 + number, -number):
        wrong.append(f"{what}: status {status}")
    if "Traceback" in said or "Error" in said or "Not foreseen" in said:
        wrong.append(f"{what}: {said.strip()[-2000:]}")
    elif status > 0 and said.strip().splitlines()[-1:] != [
        line for line in said.strip().splitlines() if line.startswith("regard: ")
    ]:
        wrong.append(f"{what}: not one line: {said.strip()[-300:]}")
    deadline = time.monotonic() + 20
    while (left := group(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        wrong.append(f"{what}: left running: {left}")
    return f"{number.name} {target} {'ended' if status == 0 else 'stopped'}", wrong


def tried(bench: Bench, name: str, moments: int, seed: int) -> bool:
    """Try a command, print its row of the table, and return whether all went well."""
    draw, whole = random.Random(f"{name}{seed}"), bench.folder / "whole" / name
    began = time.monotonic()
    ended = start(bench.command(name, whole))
    _, said = ended.communicate()
    if ended.returncode:
        print(f"{name}: undisturbed, it failed: {said}")
        return False
    seconds, expected = time.monotonic() - began, result(whole)
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    while kinds.total() < moments:
        out = bench.folder / "killed" / name
        kind, found = disturbed(bench, name, out, draw, seconds)
        if not kind and not found:  # the machine has become quicker: measure again
            shutil.rmtree(out, ignore_errors=True)
            began = time.monotonic()
            start(bench.command(name, out)).communicate()
            seconds = time.monotonic() - began
            shutil.rmtree(out, ignore_errors=True)
            continue
        kinds[kind] += 1
        wrong += found
        again = start(bench.command(name, out))
        _, said = again.communicate()
        if again.returncode:
            wrong.append(f"{kind}, rerun: {said.strip()[-500:]}")
        found_result = result(out) if out.is_dir() else {}
        different = sorted(f for f in expected.keys() | found_result if expected.get(f) != found_result.get(f))
        if different:
            wrong.append(f"{kind}: other results: {', '.join(different[:6])}")
        if left := [path.name for path in out.rglob(".*") if path.name == ".lock" or path.suffix == ".tmp"]:
            wrong.append(f"{kind}: left behind: {left}")
        shutil.rmtree(out, ignore_errors=True)
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"{name:9} {moments} moments in {seconds:.0f} s, {len(wrong)} wrong  ({counted})", flush=True)
    for line in wrong:
        print(f"          {line}", flush=True)
    return not wrong


def main() -> None:
    """Read the command line, and try the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", choices=[*COMMANDS, []], help="default: all of them")
    parser.add_argument("--moments", type=int, default=20, help="kills of each command; default 20")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default 0")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        well = [tried(bench, name, options.moments, options.seed) for name in options.commands or COMMANDS]
    sys.exit(not all(well))


if __name__ == "__main__":
    main()
