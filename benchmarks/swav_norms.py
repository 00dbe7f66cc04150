"""What it costs in accuracy if batch norms share statistics with some processes alone, or with none: SwAV, 4 processes.

    python -m benchmarks.swav_norms                  # scikit-learn's digits
    python -m benchmarks.swav_norms --cifar FOLDER --preset small --steps 200   # FOLDER: see benchmarks/swav_cifar.py

Every row is pretrained from the same seeds with the same batches; the last two columns are the mean over seeds, and in
brackets each of them. Of CIFAR-10 all 50,000 pictures are pretrained on; 5,000 labelled ones and 5,000 of the test set
say how good the features are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VARIANTS = {
    "batch norm, all processes": ["--norm-processes", "0"],
    "batch norm, 2 neighbours": ["--norm-processes", "2"],
    "batch norm, each alone": ["--norm-processes", "1"],
    "group norm": ["--backbone-options", '{"norm":"group"}'],
}


def regard(*words: str) -> None:
    """Run a command of regard; its words are shown if it fails."""
    command = [str(Path(sys.executable).parent / "regard"), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


@dataclass(frozen=True)
class Data:
    """The arguments that name pictures: of `regard pretrain`, and of `regard evaluate`."""

    pretrain: list[str]
    evaluate: list[str]


def cifar(source: str, folder: Path) -> Data:
    """CIFAR-10 in three files."""
    from benchmarks.swav_cifar import cifar10

    learn, test = cifar10(source)
    paths = {name: str(folder / f"{name}.npz") for name in ("all", "labelled", "test")}
    for name, part, count in (("all", learn, len(learn)), ("labelled", learn, 5000), ("test", test, 5000)):
        np.savez(paths[name], pictures=part.pictures[:count], labels=part.labels[:count])
    return Data([paths["all"]], [paths["labelled"], "--test", paths["test"]])


def accuracy(folder: Path, data: Data, options: list[str]) -> tuple[float, float]:
    """Shares that k-NN and a linear probe get right, of a backbone pretrained with these options."""
    regard("pretrain", *data.pretrain, "--out", str(folder), "--device", "cpu", "--no-progress", *options)
    regard("evaluate", str(folder), *data.evaluate, "--device", "cpu", "--out", str(folder / "numbers.json"))
    numbers = json.loads((folder / "numbers.json").read_text())
    knn, probe = (100 * numbers[name]["right"] / numbers[name]["count"] for name in ("knn", "probe"))
    return knn, probe


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", metavar="FOLDER", help="CIFAR-10 in place of scikit-learn's digits")
    parser.add_argument("--preset", default="digits", help="of regard pretrain; default digits")
    parser.add_argument("--steps", type=int, default=300, help="of each pretraining; default 300")
    parser.add_argument("--seeds", type=int, default=2, help="pretrainings for each row; default 2")
    parser.add_argument("--devices", type=int, default=4, help="processes; default 4")
    given = parser.parse_args()
    shared = ["--preset", given.preset, "--steps", str(given.steps), "--devices", str(given.devices)]
    print("| norms | 10-NN (%) | linear probe (%) |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        data = cifar(given.cifar, Path(temporary)) if given.cifar else Data([], [])
        for number, (name, options) in enumerate(VARIANTS.items()):
            seeds = range(given.seeds)
            found = [
                accuracy(Path(temporary) / f"{number}-{seed}", data, [*shared, *options, "--seed", str(seed)])
                for seed in seeds
            ]
            cells = [
                f"{statistics.mean(one):.1f} ({', '.join(f'{share:.1f}' for share in one)})"
                for one in zip(*found, strict=True)
            ]
            print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
