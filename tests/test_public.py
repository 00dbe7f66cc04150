"""Every public name says what it is, with shapes, the equation where there is one, and an example that runs."""

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent
MODULES = (
    "regard",
    "regard.continuous",
    "regard.wasserstein",
    "regard.nn",
    "regard.hub",
    "regard.hf",
    "regard.pictures",
    "regard.backbones",
    "regard.training",
    "regard.swav",
    "regard.scenes",
    "regard.vqa",
    "regard.classify",
    "regard.importers",
    "regard.show",
    "regard.report",
    "regard.explore",
)
NUMBERED = MODULES[:4]  # what docs/math.md is about
# They list their names for regard itself: rooms of the maps, the kernels, what two commands run.
OWN = {
    "regard.maps",
    "regard.native",
    "regard.gpu",
    "regard.answering",
    "regard.demo",
    "regard.looking",
    "regard.patches",
    "regard.thesis",
}
# Tools, results and drop-ins that compute nothing of their own.
NO_EQUATION = {
    "Ellipse",
    "Interval",
    "Learned",
    "Pooled",
    "Setting",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "checks",
    "from_cholesky",
    "grid",
    "line",
    "native_kernels",
}
SHAPE = re.compile(r"\(\.\.\.|\([A-Z0-9n]\w*, |\(\w+,\)|[Ss]hape")
EQUATION = re.compile(r"(?<![\d.])([1-7]\.\d+(?:\.\d)?)(?![\d%])")


def public():
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            if not inspect.ismodule(getattr(importlib.import_module(module), name)):
                yield module, name


def described(thing):
    """The docstrings of a function, or of a class, its constructor and its forward."""
    parts = (
        [thing, thing.__dict__.get("__init__"), thing.__dict__.get("forward")] if inspect.isclass(thing) else [thing]
    )
    return "\n".join(inspect.getdoc(part) or "" for part in parts if part is not None)


def constant_docs(module, name):
    """The string under the assignment of a constant, in the file that makes it."""
    for path in Path(importlib.import_module(module).__file__).parent.glob("*.py"):
        body = ast.parse(path.read_text()).body
        for node, following in itertools.pairwise(body):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            if name in [getattr(target, "id", None) for target in targets]:
                return ast.unparse(following) if isinstance(following, ast.Expr) else ""
    return ""


CALLABLES = [(m, n) for m, n in public() if callable(getattr(importlib.import_module(m), n))]
CONSTANTS = [pair for pair in public() if pair not in CALLABLES]


@pytest.mark.parametrize(("module", "name"), CALLABLES)
def test_says_what_it_is_with_an_example(module, name):
    thing = getattr(importlib.import_module(module), name)
    said = (thing.__doc__ if not inspect.isclass(thing) else thing.__dict__.get("__doc__")) or ""
    assert not said.startswith(f"{name}("), "that is what dataclasses write by themselves"
    assert len(said.split()) > 5
    assert ">>> " in said, "an example that runs as a doctest"
    try:
        signature = str(inspect.signature(thing))
    except ValueError:
        signature = ""
    if "Tensor" in signature:
        assert SHAPE.search(described(thing)), "the shapes of tensors"
    if module in NUMBERED and name not in NO_EQUATION:
        prose = re.sub(r"^ *(>>>|\.\.\.) .*$", "", said, flags=re.MULTILINE)
        cited = EQUATION.findall(prose)
        assert cited, "the number of its equation in docs/math.md"
        numbers = re.findall(r"\\tag\{([\d.]+)\}", (ROOT / "docs" / "math.md").read_text())
        assert set(cited) & set(numbers)


@pytest.mark.parametrize(("module", "name"), CONSTANTS)
def test_constants_say_what_they_are(module, name):
    assert len(constant_docs(module, name).split()) > 3


def test_every_public_name_is_in_the_reference_once():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert sorted(listed) == sorted(f"{module}.{name}" for module, name in public())


def test_every_subpackage_with_public_names_is_looked_at():
    """A package that lists its names, or any other module that a reader may import, is in the list above."""
    found = {
        f"regard.{path.relative_to(Path(regard.__file__).parent).with_suffix('').parts[0]}"
        for path in Path(regard.__file__).parent.rglob("*.py")
        if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE)
    }
    assert found - {"regard._public"} - OWN | {"regard"} == set(MODULES)
