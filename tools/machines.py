"""Run the core's tests as on other machines: other instruction sets, one and two threads, without native kernels.

python tools/machines.py            # every setting that this processor supports, two at a time
python tools/machines.py --share 5  # each setting runs another fifth of the tests
python tools/machines.py --list     # list them, and those that it does not support

A setting is an instruction set for torch (ATEN_CPU_CAPABILITY), a variant of the native kernels (REGARD_NATIVE) and a
number of threads. Tests marked `once` are skipped: they compile, train or measure memory, and do not depend on these.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = "@tests/core.txt"  # one path per line


@dataclass(frozen=True)
class Setting:
    """The environment of one run."""

    torch: str
    kernels: str
    threads: int

    def __str__(self) -> str:
        return f"torch {self.torch}, kernels {self.kernels}, {self.threads} thread{'s' * (self.threads > 1)}"


#: Each value of each of the three at least once; the ordinary run adds the widest instructions with one thread.
SETTINGS = [
    Setting("default", "baseline", 1),
    Setting("avx2", "avx2", 2),
    Setting("avx512", "avx512", 2),
    Setting("default", "0", 2),
]


def supported() -> tuple[list[Setting], list[str]]:
    """The settings that this machine supports, and a line about each other one."""
    import torch

    from regard import native

    best = torch.backends.cpu.get_cpu_capability().lower()
    known = ["default", "avx2", "avx512"]
    capabilities = known[: known.index(best) + 1] if best in known else ["default"]
    kernels = ("0", *native.variants())
    run, lines = [], []
    for setting in SETTINGS:
        if setting.torch not in capabilities:
            lines.append(f"not shown here: {setting}; torch finds {best} on this processor")
        elif setting.kernels not in kernels:
            lines.append(f"not shown here: {setting}; kernels here: {', '.join(kernels[1:]) or 'not built'}")
        else:
            run.append(setting)
    return run, lines


def test(setting: Setting, share: str, pytest_arguments: list[str]) -> tuple[bool, str]:
    """Run a share of the core's tests, such as 0/3, in a separate process; whether they passed, and their output."""
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": setting.torch,
        "REGARD_NATIVE": setting.kernels,
        "REGARD_TEST_THREADS": str(setting.threads),
        "REGARD_TEST_PROFILE": "machines",  # fewer random examples
        "REGARD_TEST_SHARE": share,
        "OMP_WAIT_POLICY": "PASSIVE",  # two runs share the cores: a thread that waits must not spin
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not once", CORE, *pytest_arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    """Run all settings, two at a time, and print the result of each."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--list", action="store_true", help="only list the settings; other arguments go to pytest")
    arguments.add_argument(
        "--share", type=int, default=1, metavar="N", help="run one of N parts of the tests in each setting; default 1"
    )
    options, pytest_arguments = arguments.parse_known_args()
    settings, lines = supported()
    if options.list:
        print(*settings, *lines, sep="\n")
        return
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        shares = [f"{i % options.share}/{options.share}" for i in range(len(settings))]
        runs = pool.map(lambda setting, share: test(setting, share, pytest_arguments), settings, shares)
        for setting, (passed, output) in zip(settings, runs, strict=True):
            last = output.strip().splitlines()[-1] if output.strip() else "nothing printed"
            print(f"{setting}: {last}" if passed else f"{output}\n{setting}: FAILED", flush=True)
            failed += not passed
    print(*lines, sep="\n", end="\n" if lines else "")
    if failed:
        sys.exit(f"{failed} of {len(settings)} settings failed")


if __name__ == "__main__":
    main()
