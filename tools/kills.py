"""Kill each long command at random moments, rerun it, and compare the result with that of an undisturbed run.

    python tools/kills.py                        # 50 moments for each command: about an hour of one core
    python tools/kills.py train --moments 10 --seed 7

A moment is drawn between the beginning and the end of an undisturbed run, a signal from SIGINT, SIGTERM and SIGKILL,
and a target: the command's own process alone ("parent"), the whole group (as ctrl-c in a shell), or one of its workers.
Then the command is rerun until it ends well. What must hold: SIGINT and SIGTERM to the command end it with 130 and 143,
one line and no traceback; nothing of it is left running; the rerun gives the same bytes (apart from times) as the
undisturbed run; no temporary file or lock is left, in the folder of the run or among those of the system. The tool
prints a row of a Markdown table for each command, and ends with status 1 if anything was wrong.

Commands are forked from this process, which has imported what they need, rather than started anew: a kill costs the
work, and not twice the imports. The processes that a command spawns import everything themselves, as always.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import csv
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

TINY = {"width": 16, "heads": 2, "layers": 1, "feed-forward": 32, "flat": 16, "fused": 24, "words": 8, "batch": 8}
TIMES = {"samples_per_second"}  # columns of a log that differ between runs
# In a summary and in a report.
SECONDS = re.compile(rb'(?:"|&quot;)seconds(?:"|&quot;): (?:[0-9.e-]+|null)|, in [0-9.]+ (?:seconds|minutes|hours)')
COMMANDS = ("pretrain", "features", "train", "patience", "vqa", "compare", "demo")
WITH_WORKERS = ("pretrain", "train", "vqa", "compare", "demo")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Started:
    """A function that runs in a forked process, which leads a session of its own."""

    def __init__(self, function: Callable[[], None], folder: Path) -> None:
        """Begin; what it says on standard error, and its temporary files, go to `folder`."""
        self.errors, self.temporary = folder / "errors.txt", folder / "temporary"
        self.temporary.mkdir(parents=True, exist_ok=True)
        process = multiprocessing.get_context("fork").Process(target=self._begin, args=(function,))
        with signal_blocked():
            process.start()
        self.process, self.pid = process, process.pid or 0

    def _begin(self, function: Callable[[], None]) -> None:
        """In the forked process: ctrl-c as a terminal gives it, then the function."""
        os.setsid()
        for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, os.devnull, os.O_WRONLY)):
            os.dup2(os.open(path, flags), descriptor)
        os.dup2(os.open(self.errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        os.environ["TMPDIR"], tempfile.tempdir = str(self.temporary), None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS[:2])
        try:
            function()
        finally:
            atexit._run_exitfuncs()  # as at the end of a program, which multiprocessing leaves out

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end; whether it came."""
        self.process.join(max(0.0, seconds))
        return self.process.exitcode is not None

    @property
    def status(self) -> int:
        """The exit status; negative for a signal."""
        self.process.join()
        return self.process.exitcode or 0

    @property
    def said(self) -> str:
        """What it wrote to standard error."""
        return self.errors.read_text().strip() if self.errors.is_file() else ""

    def left(self) -> list[str]:
        """The names of temporary files that are left."""
        return sorted(path.relative_to(self.temporary).as_posix() for path in self.temporary.rglob("*"))


@contextlib.contextmanager
def signal_blocked():  # type: ignore[no-untyped-def]
    """Hold signals back, so that one to a forked process waits until it has said what becomes of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[:2])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def command_line(words: Sequence[str], *, tiny_demo: bool = False) -> None:
    """What a command does, from the first line of the program on."""
    from regard.cli import main

    if tiny_demo:
        from regard.demo import DemoSettings

        counts = {"train": 40, "val": 4, "test": 6, "pairs": 4}
        small = DemoSettings(counts, pretraining_steps=12, epochs=2, entries=2)
        DemoSettings.usual = classmethod(lambda cls: small)  # type: ignore[assignment,method-assign]
    sys.argv = ["regard", *words]
    main()


class Bench:
    """A folder with tiny data, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        """Draw the scenes, and make their features."""
        self.folder = folder
        self.splits = [f"--split={name}" for name in ("train", "val", "test", "pairs")]
        counts = ("--train", 48, "--val", 8, "--test", 8, "--pairs", 8, "--size", 32)
        self._finish(lambda: command_line(list(map(str, ("scenes", folder / "scenes", *counts)))))
        self._finish(self._backbone)
        words = ("features", folder / "scenes", "--backbone", folder / "net", "--out", folder / "features")
        self._finish(lambda: command_line([*map(str, words), *self.splits]))
        self._finish(self._table)

    def _finish(self, function: Callable[[], None]) -> None:
        """Run what must succeed, in a process of its own: this one stays without threads."""
        started = Started(function, self.folder / "process")
        if started.status:
            sys.exit(f"the tiny data could not be made: {started.said}")

    def _backbone(self) -> None:
        from regard.backbones import make_backbone, save_backbone

        backbone = make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2)
        save_backbone(backbone, self.folder / "net")

    def _table(self) -> None:
        """Write questions about scenes as a table of one's own."""
        from regard.vqa import read_questions

        records = read_questions(self.folder / "scenes").records
        with (self.folder / "questions.csv").open("w", newline="") as file:
            csv.writer(file, delimiter=";").writerows(
                [("image", "question", "label"), *((r.picture, r.question, r.answers[0]) for r in records)]
            )

    def words(self, name: str, out: Path) -> list[str]:
        """The words of a long command that writes to `out`."""
        here, scenes, features = self.folder, self.folder / "scenes", ["--features", self.folder / "features"]
        tiny = [f"--{option}={value}" for option, value in TINY.items()]
        words: dict[str, list[object]] = {
            "pretrain": [
                *("pretrain", scenes / "train", "--steps", 40, "--batch-size", 16, "--prototypes", 10, "--queue", 0),
                *("--checkpoint-every", 5, "--log-every", 3, "--backbone-options", '{"widths": [8], "depths": [1]}'),
                *("--workers", 2),
            ],
            "features": ["features", scenes, "--backbone", "small", "--size", 96, "--batch", 1, *self.splits],
            "train": ["train", scenes, *features, "--preset", "small", *tiny, "--epochs", 2, "--checkpoint-every", 10],
            "compare": [
                *("compare", scenes, *features, "--preset", "small", *tiny, "--epochs", 1, "--seeds", 1),
                *("--attention", "discrete-softmax", "--attention", "continuous-softmax", "--unseen", "pairs"),
                *("--checkpoint-every", 10, "--workers", 2),
            ],
            "vqa": [
                *("vqa", scenes / "train", here / "questions.csv", "--backbone", here / "net", *tiny, "--epochs", 2),
                *("--checkpoint-every", 10, "--workers", 1),
            ],
            "demo": ["demo", "--workers", 2],
        }
        words["patience"] = [*words["train"], "--epochs", 3, "--validation", "val", "--patience", 1]
        words["train"] += ["--workers", 1]
        return [*map(str, words[name]), "--out", str(out)]

    def start(self, name: str, out: Path) -> Started:
        """Start a long command that writes to `out`."""
        words = self.words(name, out)
        return Started(lambda: command_line(words, tiny_demo=name == "demo"), self.folder / "process")

    def whole(self, name: str, out: Path) -> tuple[Started, list[str]]:
        """Run a long command undisturbed; return it, and the modules that it imported."""
        words, found = self.words(name, out), self.folder / "modules.json"

        def noted() -> None:
            try:
                command_line(words, tiny_demo=name == "demo")
            finally:
                found.write_text(json.dumps(sorted(sys.modules)))

        started = Started(noted, self.folder / "process")
        started.process.join()
        return started, json.loads(found.read_text())


def prepare(modules: Sequence[str]) -> None:
    """Import what a command has imported, so that the next ones are forked with it."""
    for name in modules:
        if name not in sys.modules and not name.startswith("__"):
            with contextlib.suppress(Exception):  # one that only its package can import
                importlib.import_module(name)


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
    """The worker processes of a command: all of its session but itself and the tracker of multiprocessing."""
    found = []
    for number in group(leader):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if number != leader and b"resource_tracker" not in words:
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
    number = draw.choice(SIGNALS)
    target = draw.choice(["parent", "group", "worker"] if name in WITH_WORKERS else ["parent", "group"])
    started = bench.start(name, out)
    if started.ends_within(draw.uniform(0, seconds)):
        return "", []
    victim = started.pid
    if target == "worker":
        while not (victims := workers(started.pid)):
            if started.ends_within(0.05):
                return "", []
        victim = draw.choice(victims)
    with contextlib.suppress(ProcessLookupError):  # it has ended this moment
        os.killpg(started.pid, number) if target == "group" else os.kill(victim, number)
    if not started.ends_within(120):
        os.killpg(started.pid, signal.SIGKILL)
        return "did not end", [f"{number.name} to {target}: did not end"]
    what, status, said = f"{number.name} to {target}", started.status, started.said
    wrong = []
    # Before the command line is there and after it is gone, the signal ends the process itself: to a shell the same.
    if number is not signal.SIGKILL and target != "worker" and status not in (0, 128 + number, -number):
        wrong.append(f"{what}: status {status}")
    if "Traceback" in said or "Error" in said or "Not foreseen" in said:
        wrong.append(f"{what}: {said[-2000:]}")
    elif status > 0 and said.splitlines()[-1:] != [line for line in said.splitlines() if line.startswith("regard: ")]:
        wrong.append(f"{what}: not one line: {said[-300:]}")
    deadline = time.monotonic() + 20
    while (left := group(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        wrong.append(f"{what}: left running: {left}")
        for number_left in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number_left, signal.SIGKILL)
    return f"{number.name} {target} {'ended' if status == 0 else 'stopped'}", wrong


def tried(bench: Bench, name: str, moments: int, seed: int) -> bool:
    """Try a command, print its row of the table, and return whether all went well."""
    draw, whole, began = random.Random(f"{name}{seed}"), bench.folder / "whole" / name, time.monotonic()
    first, modules = bench.whole(name, whole)
    if first.status:
        print(f"{name}: undisturbed, it failed: {first.said}")
        return False
    expected = result(whole)
    prepare(modules)
    seconds = measured(bench, name)
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    while kinds.total() < moments:
        out = bench.folder / "killed" / name
        kind, found = disturbed(bench, name, out, draw, seconds)
        if not kind:  # the machine has become quicker
            shutil.rmtree(out, ignore_errors=True)
            seconds *= 0.9
            continue
        kinds[kind] += 1
        wrong += found
        again = bench.start(name, out)
        if again.status:
            wrong.append(f"{kind}, rerun: {again.said[-500:]}")
        found_result = result(out) if out.is_dir() else {}
        different = sorted(f for f in expected.keys() | found_result if expected.get(f) != found_result.get(f))
        if different:
            wrong.append(f"{kind}: other results: {', '.join(different[:6])}")
        if left := [path.name for path in out.rglob(".*") if path.name == ".lock" or path.suffix == ".tmp"]:
            wrong.append(f"{kind}: left behind: {left}")
        # Python leaves an empty folder of its own if SIGKILL ends a process that sends tensors.
        if left := [path for path in again.left() if not ("SIGKILL" in kind and path.startswith("pymp-"))]:
            wrong.append(f"{kind}: temporary files left: {left[:6]}")
        shutil.rmtree(again.temporary)
        shutil.rmtree(out, ignore_errors=True)
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    minutes = (time.monotonic() - began) / 60
    print(f"| {name} | {moments} | {len(wrong)} | {counted} | {seconds:.1f} s | {minutes:.1f} min |", flush=True)
    for line in wrong:
        print(f"    {line}", flush=True)
    return not wrong


def measured(bench: Bench, name: str) -> float:
    """The seconds of an undisturbed run."""
    out, began = bench.folder / "timed" / name, time.monotonic()
    bench.start(name, out).process.join()
    shutil.rmtree(out, ignore_errors=True)
    return time.monotonic() - began


def main() -> None:
    """Read the command line, and try the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", choices=[*COMMANDS, []], help="default: all of them")
    parser.add_argument("--moments", type=int, default=50, help="kills of each command; default 50")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default 0")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: threads would not survive the fork
    for module in ("torch", "regard.cli", "regard.training._loop"):
        importlib.import_module(module)
    # Not a TemporaryDirectory: every process that is forked from here would remove it at its end.
    folder = Path(tempfile.mkdtemp(prefix="regard-kills-"))
    try:
        bench = Bench(folder)
        print("| command | kills | wrong | signal, target, and what became of it | one run | all |")
        print("|---|---|---|---|---|---|", flush=True)
        well = [tried(bench, name, options.moments, options.seed) for name in options.commands or COMMANDS]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(not all(well))


if __name__ == "__main__":
    main()
