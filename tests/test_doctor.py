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
    told = {line[:16].strip(): line[16:] for line in run().output.splitlines()}
    assert told["regard"] == regard.__version__
    assert told["[show]"].startswith("matplotlib ")
    assert f"{told['native kernels']}; Triton kernels {told['Triton kernels']}" == regard.native_kernels()


def test_what_is_missing(run, monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "show", "no-such-package")
    assert f"missing: {install_extra('show')}" in run().output
