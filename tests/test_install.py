"""What to install, said as a command that works where regard came from: an index, a clone, a wheel, a URL."""

import json
import os
import shlex
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

import regard
from regard import _install
from regard._install import install_extra, install_packages, update_regard

ROOT = Path(regard.__file__).parents[2]
METADATA = """Metadata-Version: 2.4
Name: regard
Version: 0.1.0
Requires-Dist: torch>=2.8
Requires-Dist: matplotlib>=3.8; extra == "show"
Requires-Dist: typer>=0.12; extra == "show"
Requires-Dist: regard[show]; extra == "swav"
Requires-Dist: lightning>=2.5; extra == 'swav'
Requires-Dist: regard[show, swav]; extra == "all"
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package of this name in a folder, with a record of where it came from, and runs from there."""

    def install(record=None):
        place = tmp_path / "site-packages"
        (place / "regard").mkdir(parents=True)
        folder = place / "regard-0.1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(METADATA)
        if record is not None:
            (folder / "direct_url.json").write_text(record if isinstance(record, str) else json.dumps(record))
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.setattr(_install, "_PACKAGE", place / "regard")

    monkeypatch.setattr(_install, "_pip_install", lambda: ["pip", "install"])
    return install


def words(command):
    """The arguments of `pip install`."""
    program, verb, *rest = shlex.split(command)
    assert (program, verb) == ("pip", "install")
    return rest


def test_from_a_clone(monkeypatch):
    """This one: its code lies in src, beside pyproject.toml."""
    monkeypatch.setattr(_install, "_pip_install", lambda: ["pip", "install"])
    assert words(install_extra("show")) == ["-e", f"{ROOT}[show]"]
    assert update_regard().startswith(f"git -C {shlex.quote(str(ROOT))} pull, then pip install -e ")


def test_from_an_index(installed):
    installed()
    assert words(install_extra("show")) == ["regard[show]"]
    assert words(update_regard()) == ["--upgrade", "regard"]


def test_from_a_folder(installed, tmp_path):
    clone = tmp_path / "my clone ü"
    clone.mkdir()
    installed({"url": clone.as_uri(), "dir_info": {}})
    assert words(install_extra("hf")) == [f"{clone}[hf]"]
    assert update_regard() == f"git -C '{clone}' pull, then pip install '{clone}'"


def test_from_a_wheel(installed, tmp_path):
    wheel = tmp_path / "regard-0.1.0-py3-none-any.whl"
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert words(install_extra("show")) == [f"{wheel}[show]"]
    assert words(update_regard()) == ["--upgrade", "regard"]


@pytest.mark.parametrize("extra", ["all", "swav"])
def test_from_a_wheel_that_is_gone(installed, tmp_path, extra):
    """Then by what the extra consists of, each once."""
    installed({"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}})
    assert words(install_extra(extra)) == ["matplotlib>=3.8", "typer>=0.12", "lightning>=2.5"]


def test_from_a_repository(installed):
    vcs = {"vcs": "git", "requested_revision": "v0.1", "commit_id": "abc"}
    installed({"url": "https://example.org/regard.git", "vcs_info": vcs, "subdirectory": "python"})
    place = "git+https://example.org/regard.git@v0.1#subdirectory=python"
    assert words(install_extra("hf")) == [f"regard[hf] @ {place}"]
    assert words(update_regard()) == ["--upgrade", f"regard @ {place}"]


def test_from_a_repository_on_this_machine(installed):
    installed({"url": "file:///srv/regard.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert words(install_extra("hf")) == ["regard[hf] @ git+file:///srv/regard.git"]


def test_from_an_archive_elsewhere(installed):
    installed({"url": "https://example.org/regard-0.1.0.tar.gz", "archive_info": {}})
    assert words(install_extra("hf")) == ["regard[hf] @ https://example.org/regard-0.1.0.tar.gz"]


@pytest.mark.parametrize("record", ["", "{", "[]", '{"url": 3}'])
def test_a_record_that_says_nothing(installed, record):
    installed(record)
    assert words(install_extra("show")) == ["regard[show]"]


def test_the_extras_that_commands_name_exist():
    assert {"all", "hf", "show", "transport"} <= set(metadata("regard").get_all("Provides-Extra"))


def test_pip_of_this_python(monkeypatch, tmp_path):
    """By its name only if that pip belongs to the active environment; another would install elsewhere."""
    here = tmp_path / "venv" / "bin"
    here.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setattr(sys, "prefix", str(here.parent))
    found = {"pip": str(here / "pip"), "uv": None}
    monkeypatch.setattr(_install.shutil, "which", found.get)
    assert install_packages("pyarrow") == "pip install pyarrow"
    found["pip"] = "/usr/bin/pip"
    assert install_packages("pyarrow") == f"{here / 'python'} -m pip install pyarrow"
    monkeypatch.setattr(_install, "find_spec", lambda name: None)
    found["uv"] = "/usr/bin/uv"
    assert install_packages("pyarrow") == f"uv pip install --python {here / 'python'} pyarrow"
    found["pip"] = str(here / "pip")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)  # no environment: pip may be that of another Python
    assert not install_packages("pyarrow").startswith("pip ")


def test_quotes_of_windows(monkeypatch):
    monkeypatch.setattr(os, "name", "nt")
    assert _install._quoted(r"C:\new folder\regard[show]") == r'"C:\new folder\regard[show]"'
    assert _install._quoted(r"C:\venv\Scripts\python.exe") == r"C:\venv\Scripts\python.exe"


def test_no_other_file_says_what_to_install():
    """Not in a message: the commands differ by machine. Documentation and docstrings name extras."""
    source = Path(regard.__file__).parent
    files = [path for path in source.rglob("*.py") if path.name != "_install.py"]
    assert not [str(path.relative_to(source)) for path in files if "pip install" in path.read_text("utf-8")]


def test_without_typer_the_command_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    from regard.cli import main

    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value.code).endswith(f"Try: {install_extra('show')}")


def test_a_package_that_a_command_lacks(monkeypatch):
    from regard.cli import main

    monkeypatch.setitem(sys.modules, "regard.patches", None)
    monkeypatch.setattr(sys, "argv", ["regard", "maps"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value.code).endswith(f"Try: {install_extra('all')}")
