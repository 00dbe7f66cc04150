"""The house rules that a machine can check: what may import what, what an import costs, what is public."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent
# Each layer may import from the layers before it, and from its own.
LAYERS = [
    {
        *(
            "_check",
            "_files",
            "_fixed_numbers",
            "_install",
            "_lazy",
            "_lock",
            "_ranks",
            "_once",
            "_partial",
            "_plain",
            "_problem",
            "_repr",
        ),
        *("_rounded", "_stop", "_torch", "_workers", "gpu", "hub", "native"),
    },
    {"affinity", "maps", "continuous", "wasserstein"},
    {"attention", "losses"},
    {"nn"},
    {"hf", "pictures", "backbones", "training", "show"},
    {"swav", "scenes"},
    {"vqa"},
    {"importers"},
    {"demo", "explore", "looking", "patches", "report", "thesis"},
    {"answering"},
    {"classify"},
    {"cli"},
]
PACKAGE = {"__init__", "_public"}  # its own files, which hand out the names of the core
CORE = set().union(*LAYERS[:4]) | PACKAGE


def modules():
    return sorted(SOURCE.rglob("*.py"))


def part(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path, everywhere=True):
    """Names of the modules that a file imports; with everywhere=False only those imported when it is loaded."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "regard":
                yield from (f"regard.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    if part(path) in PACKAGE:
        return
    level = next(i for i, layer in enumerate(LAYERS) if part(path) in layer)
    allowed = set().union(*LAYERS[: level + 1])
    used = {name.split(".")[1] for name in imports(path) if name.startswith("regard.")}
    assert used <= allowed


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_core_needs_torch_alone(path):
    if part(path) in CORE:
        outside = {name.split(".")[0] for name in imports(path, everywhere=False)} - set(sys.stdlib_module_names)
        kernels = {"triton"} if path.stem == "_numbers" or path.stem.endswith("_kernels") else set()
        assert outside <= {"torch", "regard", "__future__"} | kernels


def test_what_only_the_application_uses_is_in_packages():
    """A file that lies beside the core's is the core's."""
    assert {path.stem for path in SOURCE.glob("*.py")} <= CORE


def test_one_module_imports_lightning():
    """By any of its names, at the top or inside a function, in the package or in what is written beside it."""
    root = SOURCE.parent.parent
    paths = [path for folder in ("src", "benchmarks", "examples", "tools") for path in (root / folder).rglob("*.py")]
    names = {"lightning", "pytorch_lightning", "lightning_fabric"}
    found = {str(path.relative_to(root)) for path in paths if {n.split(".")[0] for n in imports(path)} & names}
    assert found == {"src/regard/training/_fabric.py"}


def test_importing_the_core_loads_nothing_heavy():
    """Beyond torch: regard's own modules and a few small ones of torch and Python."""
    code = "import sys, torch; before = set(sys.modules); import regard; regard.attend; print(*{*sys.modules} - before)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "regard.attention.attend" in out.split()
    loaded = {name for name in out.split() if not name.startswith("regard")}
    assert len(loaded) < 10, sorted(loaded)


def test_public_names_exist_once_and_sorted():
    assert regard.__all__ == sorted(set(regard.__all__))
    assert all(hasattr(regard, name) for name in regard.__all__)


def test_the_version_is_stated_in_one_place():
    """Others repeat it, and must say the same; what is built takes it from the package."""
    root = SOURCE.parent.parent
    assert f"\nversion: {regard.__version__}\n" in (root / "CITATION.cff").read_text()
    assert f"\n## {regard.__version__}" in (root / "CHANGELOG.md").read_text()
    assert 'version = { attr = "regard.__version__" }' in (root / "pyproject.toml").read_text()
    assert (SOURCE / "py.typed").exists()
