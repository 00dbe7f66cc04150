"""The table of signatures is that of the C++ files, and states the version of the interface."""

import re
from pathlib import Path

import pytest

from regard import native
from regard.native._load import load, path_of
from regard.native._signatures import INTERFACE, SIGNATURES

FOLDER = Path(native.__file__).parent
FILES = {path.name: path.read_text() for path in FOLDER.glob("*.*") if path.suffix in (".cpp", ".h")}
DECLARATION = re.compile(r"^\s*EXPORT (\w+) (regard_\w+)\(([^)]*)\)", re.MULTILINE)
# A macro that exports functions, for types and the suffix of their names; it is used with one line for each.
MACRO = re.compile(r"^#define (\w+)\(((?:\w+, )+NAME)\)((?:[^\n]*\\\n)+[^\n]*)", re.MULTILINE)


def expanded(text):
    """A C++ file with the macros that export functions expanded."""
    parts = [MACRO.sub("", text)]
    for name, parameters, body in MACRO.findall(text):
        for use in re.findall(rf"^{name}\((.*)\)$", parts[0], re.MULTILINE):
            part = body.replace("\\\n", "\n")
            for parameter, value in zip(parameters.split(", "), use.split(", "), strict=True):
                part = re.sub(rf"(##)?\b{parameter}\b", value, part.replace(f"_##{parameter}", f"_{value}"))
            parts.append(part)
    return "\n".join(parts)


def declared():
    """Every exported function of the C++ files by its name, with its result and its arguments."""
    return {
        name: (result, tuple(" ".join(word.split()) for word in arguments.split(",") if word.strip()))
        for text in FILES.values()
        for result, name, arguments in DECLARATION.findall(expanded(text))
    }


def test_the_table_is_that_of_the_declarations():
    table = {
        name: (result, tuple(f"{argument.type} {argument.name}" for argument in arguments))
        for name, (arguments, result) in SIGNATURES.items()
    }
    assert table == declared()


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
