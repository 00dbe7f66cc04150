"""`regard doctor` says what is there and what is missing."""

import pytest
import typer
from typer.testing import CliRunner

import regard
from regard._install import install_extra
from regard.cli import doctor


@pytest.fixture
def run():
    app = typer.Typer()
    doctor.add(app)
    return lambda: CliRunner().invoke(app, [])


def test_what_is_there(run):
    told = dict(line.split(maxsplit=1) for line in run().output.splitlines())
    assert told["regard"] == regard.__version__
    assert told["[show]"].startswith("matplotlib ")
    assert regard.native_kernels() in run().output


def test_what_is_missing(run, monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "show", "no-such-package")
    assert f"missing: {install_extra('show')}" in run().output
