"""Help, version and completion answer without what the work needs: no torch, numpy, matplotlib, ... is imported."""

import os
import subprocess
import sys

import pytest
import typer
from light import PROGRAM

import regard
from regard.cli import GROUPS, application


def commands(group=None, path=()):
    """Every command and group of commands, as words."""
    group = group or typer.main.get_command(application())
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def run(*arguments, status=0, **environment):
    """What the program prints, after a check of its status and of what it imported."""
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200", **environment}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, encoding="utf-8")
    assert done.stderr.splitlines()[-1:] == ["HEAVY"], done.stderr
    assert done.returncode == status
    return done.stdout


def test_every_command_is_looked_at():
    assert {path[0] for path in commands()} == {name for names in GROUPS.values() for name in names}
    assert ("export", "model") in commands()


def test_what_is_heavy_is_found():
    code = PROGRAM.replace("from regard.cli import main", "import numpy").replace("main()", "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["HEAVY", "numpy"]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_first_page(flag):
    page = run(flag, PYTHONUTF8="1")
    assert all(f"│ {name} " in page for names in GROUPS.values() for name in names)


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_the_page_of_a_command(path):
    page = run(*path, "--help", PYTHONUTF8="1")
    assert f"Usage: regard {' '.join(path)} " in page
    assert run(*path, "-h", PYTHONUTF8="1") == page


@pytest.mark.parametrize("arguments", [["--version"], ["--version", "train"]])
def test_the_version_and_nothing_else(arguments):
    assert run(*arguments) == f"regard {regard.__version__}\n"


def test_no_command_and_wrong_ones():
    assert "Usage: regard " in run(PYTHONUTF8="1", status=2)
    environment = {**os.environ, "TERM": "dumb"}
    for arguments in (["trian"], ["train"], ["train", "--stpes", "3"]):
        command = [sys.executable, "-c", PROGRAM, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        *said, imported = done.stderr.splitlines()
        assert done.returncode == 2
        assert len(said) == 1
        assert said[0].startswith("regard: ")
        assert imported == "HEAVY"
