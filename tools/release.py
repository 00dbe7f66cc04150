"""Build the sdist and the wheel, look inside, install the wheel in a clean environment, and try it there.

python tools/release.py                # all of it: about three minutes and what pip downloads
python tools/release.py --no-install   # build and look inside
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITHOUT, WITH = 1_000_000, 3_000_000  # bytes of a wheel without and with the kernels
ALLOWED = re.compile(
    r"regard/([\w/]+\.py|py\.typed|assets/cat\.jpg|explore/static/[\w.-]+|native/\w+\.(?:cpp|h)|native/_kernels[\w.-]*\.so)"
    r"|regard-[\w.]+\.dist-info/.+"
)

CORE = """
import re, sys, warnings
from pathlib import Path
import torch, regard
assert "site-packages" in regard.__file__, regard.__file__
assert regard.__version__ == sys.argv[1]
assert (Path(regard.__file__).parent / "py.typed").exists()
heavy = {"matplotlib", "transformers", "lightning", "typer", "PIL", "scipy", "sklearn"} & set(sys.modules)
assert not heavy, heavy
blocks = re.findall(r"```python\\n(.*?)```", Path(sys.argv[2]).read_text(), re.DOTALL)
core = [block for block in blocks if "transformers" not in block]
for block in core:
    exec(compile(block, "README.md", "exec"), {})
q = torch.randn(1, 64, 16, requires_grad=True)
regard.attend(q, q, q, map=regard.sparsemax).sum().backward()
print(len(core), "blocks of the README ran with torch alone; native kernels", regard.native_kernels())
"""


def run(*command: str | Path, cwd: Path = ROOT, **extra: str) -> str:
    """What a command prints; its complaints and the end of everything if it fails."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | extra
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def version() -> str:
    """The one version, as the package states it; other files may only repeat it."""
    stated = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/regard/__init__.py").read_text(), re.MULTILINE)
    if stated is None:
        sys.exit("src/regard/__init__.py states no version")
    return stated[1]


def check_wheel(path: Path, most: int, kernels: bool) -> None:
    """Its size and every name in it."""
    names = zipfile.ZipFile(path).namelist()
    wrong = [name for name in names if not ALLOWED.fullmatch(name)]
    compiled = [name for name in names if name.endswith(".so")]
    if wrong or (compiled and not kernels) or path.stat().st_size >= most:
        sys.exit(f"{path.name}: {path.stat().st_size} bytes, at most {most}; not wanted: {wrong or compiled}")
    label = "with kernels" if compiled else "without kernels"
    print(f"{path.name}: {path.stat().st_size:,} bytes {label}, {len(names)} files")


def check_sdist(path: Path) -> None:
    """What is needed to build and nothing heavy."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
    for needed in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src/regard/native/common.h"):
        if not any(name.endswith(f"/{needed}") for name in names):
            sys.exit(f"{path.name} lacks {needed}")
    if heavy := [name for name in names if re.search(r"\.(so|safetensors|pt|ckpt|npz|npy|tar|zip)$", name)]:
        sys.exit(f"{path.name} holds {heavy}")
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(names)} files")


def build(out: Path) -> Path:
    """Both archives; the wheel is built from the sdist, so that the sdist is whole. The wheel's path."""
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    sdist = next(out.glob("*.tar.gz"))
    check_sdist(sdist)
    wheel = next(out.glob("*.whl"))
    check_wheel(wheel, WITH, kernels=True)
    bare, sources = out / "bare", out / "sources"
    with tarfile.open(sdist) as archive:
        archive.extractall(sources, filter="data")
    # As on a machine without a compiler.
    run(sys.executable, "-m", "build", "--wheel", "--outdir", bare, next(sources.iterdir()), CC="false", CXX="false")
    check_wheel(next(bare.glob("*.whl")), WITHOUT, kernels=False)
    return wheel


def try_out(wheel: Path, folder: Path) -> None:
    """Install into a new environment: the core, then the command line."""
    venv.create(folder / "venv", with_pip=True)
    python, empty = folder / "venv/bin/python", folder / "empty"
    empty.mkdir()
    install = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    run(*install, wheel)
    print(run(python, "-c", CORE, version(), ROOT / "README.md", cwd=empty).strip().splitlines()[-1])
    lacking = subprocess.run([folder / "venv/bin/regard"], capture_output=True, text=True, cwd=empty)
    if "pip install 'regard[show]'" not in lacking.stderr or "Traceback" in lacking.stderr:
        sys.exit(f"without typer the command line should say what it needs; it says {lacking.stderr}")
    run(*install, f"{wheel}[show]")
    for command in (["--help"], ["doctor"], ["maps", "--out", "maps.png"]):
        said = run(folder / "venv/bin/regard", *command, cwd=empty)
        print(f"regard {' '.join(command)}: {len(said.splitlines())} lines")
    if not (empty / "maps.png").stat().st_size:
        sys.exit("regard maps wrote no picture")


def main() -> None:
    """Build, look, try."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--no-install", action="store_true", help="only build and look inside")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder) / "dist")
        if not given.no_install:
            try_out(wheel, Path(folder))
        kept = ROOT / "dist"
        kept.mkdir(exist_ok=True)
        for path in (Path(folder) / "dist").glob("regard-*"):
            path.replace(kept / path.name)
    print(f"regard {version()}: in dist/")


if __name__ == "__main__":
    main()
