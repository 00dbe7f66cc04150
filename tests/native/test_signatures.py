"""The table of signatures is that of the C++ files, and states the version of the interface."""

import re
from pathlib import Path

import pytest

from regard import native
from regard.native._load import load, path_of
from regard.native._signatures import INTERFACE, SIGNATURES

FOLDER = Path(native.__file__).parent
FILES = {path.name: path.read_text() for path in FOLDER.glob("*.*") if path.suffix in (".cpp", ".h")}
DECLARATION = re.compile(r"^\s*EXPORT (\w+) (regard_\w+(?:##NAME)?)\(([^)]*)\)", re.MULTILINE)
T = re.compile(r"\bT\b")


def declared():
    """Every exported function of the C++ files by its name, with its result and its arguments, macros expanded."""
    functions = {}
    for text in FILES.values():
        lines = text.replace("\\\n", " \n")  # the backslashes of macros
        for result, name, arguments in DECLARATION.findall(lines):
            words = [" ".join(argument.split()) for argument in arguments.split(",") if argument.strip()]
            for suffix, type_ in (("f32", "float"), ("f64", "double")) if name.endswith("##NAME") else (("", "T"),):
                names = name.replace("##NAME", suffix)
                functions[names] = result, tuple(T.sub(type_, word) for word in words)
    return functions


def test_the_table_is_that_of_the_declarations():
    table = {
        name: (result, tuple(f"{argument.type} {argument.name}" for argument in arguments))
        for name, (arguments, result) in SIGNATURES.items()
    }
    assert table == declared()


def test_macros_are_used_for_both_dtypes():
    """As `declared` takes for granted."""
    macros = [name for text in FILES.values() for name in re.findall(r"#define (\w+)\(T, NAME\)", text)]
    assert len(macros) == 3
    for name in macros:
        used = [line for text in FILES.values() for line in re.findall(rf"^{name}\((.*)\)$", text, re.MULTILINE)]
        assert used == ["float, f32", "double, f64"]


def test_sizes_are_arguments_of_their_kernel():
    for name, (arguments, _) in SIGNATURES.items():
        whole = {argument.name for argument in arguments if argument.type == "int64_t"}
        for argument in arguments:
            assert argument.type.endswith("*") or not argument.entries, name
            assert {n for n in argument.entries if isinstance(n, str)} <= whole, name


def test_every_function_that_python_calls_is_exported():
    """On Windows and with hidden symbols nothing else can be found: EXPORT, and not extern "C"."""
    assert [name for name, text in FILES.items() if 'extern "C"' in text] == ["common.h"]


def test_the_version_is_stated_once():
    """In the table: setup.py reads it there and compiles it into the libraries."""
    assert "EXPORT int regard_version() { return REGARD_INTERFACE; }" in FILES["checks.cpp"]
    assert not any(re.search(r"define REGARD_INTERFACE", text) for text in FILES.values())
    for name in native.variants():
        assert load(path_of(name)).regard_version() == INTERFACE


@pytest.mark.skipif(native.library() is None, reason="no native kernels here")
def test_the_library_has_every_function():
    for name in SIGNATURES:
        assert hasattr(native.library(), name)
