"""One name, one thing: what two modules define is in the list below, with the reason; no words of a message decide."""

import ast
from collections import defaultdict
from pathlib import Path

import regard

SOURCE = Path(regard.__file__).parent
REPEATED = {
    "__all__": "Python's own",
    "_": "the twins of an operator without values, which nobody calls by name",
    "add": "the one function that each module of regard.cli has",
    "grid": "cells as locations; and show.grid, which is always written so",
    "Entmax": "the map as a value; and nn.Entmax, the module that learns its alpha",
    "_Entmax": "the derivatives of two algorithms of one map",
    "Gate": "the map as a value; and nn.Gate, the module that learns one per head",
    "largest": "the plain one, and its kernel",
    "T": "a type variable",
    "usable": "whether kernels take some tensors: native.usable on CPUs, gpu.usable on GPUs, always written so",
}


def definitions(tree):
    """The names that a module defines at its top, by `def`, `class` or an assignment."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text())


def defined():
    """Names and their modules. A command is called as the function behind it: typer takes its name from there."""
    places = defaultdict(set)
    for path, tree in modules():
        for name in definitions(tree):
            if not (path.parts[0] == "cli" and name == path.stem):
                places[name].add(path.as_posix())
    return places


def test_a_public_name_is_defined_once():
    again = {name: sorted(p) for name, p in defined().items() if len(p) > 1 and not name.startswith("_")}
    assert not {name: places for name, places in again.items() if name not in REPEATED}


def test_a_private_name_is_defined_once_in_a_package():
    """What begins with an underscore is a matter of its package: `_solve` of two packages are two things."""
    again = {}
    for name, places in defined().items():
        folders = [place.rpartition("/")[0] for place in places]
        if name.startswith("_") and len(set(folders)) < len(folders):
            again[name] = sorted(places)
    assert not {name: places for name, places in again.items() if name not in REPEATED}


def words_of(node, error):
    """Whether an expression is the text of the exception that is caught under this name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(isinstance(n, ast.Name) and n.id == error for n in ast.walk(node))
    return isinstance(node, ast.Attribute) and node.attr == "args" and ast.unparse(node.value) == error


def decides_by_words(handler):
    for node in ast.walk(handler):
        asked = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function.startswith("re.") or function.endswith((".startswith", ".endswith", ".find", ".count")):
                asked = [node.func, *node.args]
        if any(words_of(n, handler.name) for part in asked for n in ast.walk(part)):
            yield node


def test_no_decision_is_made_by_the_words_of_a_message():
    places = [
        f"{path}:{found.lineno}"
        for path, tree in modules()
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.name
        for found in decides_by_words(handler)
    ]
    assert not places


def test_a_decision_by_words_is_found():
    code = "try:\n    f()\nexcept ValueError as error:\n    if 'split' in str(error) or {}:\n        raise\n"
    for test in ("error.args[0] == 'x'", "str(error).startswith('x')", "re.match('x', str(error))"):
        (handler,) = ast.parse(code.format(test)).body[0].handlers
        assert list(decides_by_words(handler)), test
        (handler,) = ast.parse(code.replace("'split' in str(error) or ", "").format(test)).body[0].handlers
        assert list(decides_by_words(handler)), test
