"""Packages that import their public names at first use: what a reader of Python expects of a module still holds."""

import ast
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard._lazy import lazily

SOURCE = Path(regard.__file__).parent
PACKAGES = sorted(
    ".".join(("regard", *path.relative_to(SOURCE).parts[:-1]))
    for path in SOURCE.rglob("__init__.py")
    if "lazily(__name__)" in path.read_text()
)


def in_a_new_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.split()


def test_these_packages_are_lazy():
    """The package itself, and those whose settings and lists of names the command line reads."""
    names = ["regard", "regard.backbones", "regard.classify", "regard.swav", "regard.training", "regard.vqa"]
    assert names == PACKAGES


def test_importing_a_package_imports_no_torch():
    code = f"import sys, {', '.join(PACKAGES)}; print(regard.__version__, 'torch' in sys.modules)"
    assert in_a_new_process(code) == [regard.__version__, "False"]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_that_of_the_list(package):
    module, public = importlib.import_module(package), importlib.import_module(f"{package}._public")
    assert module.__all__ == public.__all__
    assert all(getattr(module, name) is getattr(public, name) for name in public.__all__)
    assert set(public.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_a_module_of_the_package_too(package):
    """Which of the two an attribute is would depend on what was imported first."""
    folder = Path(importlib.import_module(package).__file__).parent
    imported = ast.parse((folder / "_public.py").read_text()).body
    modules = {path.stem for path in folder.iterdir()}
    twice = {
        alias.name
        for node in imported
        if isinstance(node, ast.ImportFrom) and node.module != package
        for alias in node.names
    }
    assert not twice & modules


def test_names_and_modules_are_there_without_a_further_import():
    code = (
        "import regard\n"
        "print(regard.attend.__name__, regard.continuous.ridge.__name__, regard.nn.AttentionPool.__name__,\n"
        "      regard.native.variants.__name__, regard.vqa.kinds.parse.__name__)"
    )
    assert in_a_new_process(code) == ["attend", "ridge", "AttentionPool", "variants", "parse"]


def test_a_star_imports_the_public_names():
    code = "from regard import *; print(*sorted(name for name in dir() if not name.startswith('__')))"
    assert in_a_new_process(code) == sorted(regard.__all__)


def test_looking_for_what_is_not_there_imports_nothing_heavy():
    """As pytest, doctest, IPython and the import system look for names with underscores."""
    code = (
        "import sys, regard\n"
        "found = [hasattr(regard, name) for name in ('__wrapped__', '_repr_html_', '_problem')]\n"
        "print(*found, 'torch' in sys.modules)"
    )
    assert in_a_new_process(code) == ["False", "False", "True", "False"]


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'regard' has no attribute 'atend'"):
        regard.atend  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from regard.swav import nothing  # noqa: F401


def test_a_module_that_lacks_a_package_says_which(tmp_path, monkeypatch):
    package = tmp_path / "lazy_example"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from regard._lazy import lazily\n__getattr__, __dir__ = lazily(__name__)\n",
    )
    (package / "_public.py").write_text("one = 1\n__all__ = ['one']\n")
    (package / "needy.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("lazy_example")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        module.needy  # noqa: B018
    module.one = 2  # what somebody sets before the first use stays
    assert "one" in dir(module)
    assert module.one == 2
    assert module.__all__ == ["one"]
    for name in [name for name in sys.modules if name.startswith("lazy_example")]:
        monkeypatch.delitem(sys.modules, name)


def test_threads_that_ask_at_the_same_time_get_the_same():
    code = (
        "import threading, regard, regard.swav, regard.vqa\n"
        "asked = [(regard, 'attend'), (regard.vqa, 'Discrete'), (regard, 'nn'), (regard.swav, 'codes')] * 4\n"
        "gate, found = threading.Barrier(len(asked)), []\n"
        "def ask(module, name):\n"
        "    gate.wait()\n"
        "    found.append((name, id(getattr(module, name))))\n"
        "threads = [threading.Thread(target=ask, args=pair) for pair in asked]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "print(len(found), len(set(found)))"
    )
    assert in_a_new_process(code) == ["16", "4"]


def test_public_things_are_pickled_by_their_own_modules():
    for thing in (regard.attend, regard.Entmax, regard.swav.Settings(), regard.vqa.Discrete("entmax-1.3")):
        assert pickle.loads(pickle.dumps(thing)) == thing
    code = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.stdin.read())))"
    sent = pickle.dumps(regard.Entmax(1.3)).hex()
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Entmax(alpha=1.3)"


def test_type_checkers_see_the_names_and_no_catch_all():
    """They take the first branch; a `__getattr__` that they saw would make every misspelled name an Any."""
    for package in PACKAGES:
        text = Path(importlib.import_module(package).__file__).read_text()
        seen, _, run = text.partition("\nif TYPE_CHECKING:\n")[2].partition("\nelse:\n")
        assert seen.split("  #")[0].strip() == f"from {package}._public import *"
        assert run.strip() == "__getattr__, __dir__ = lazily(__name__)"


def test_a_compiled_function_may_be_the_first_to_ask():
    code = (
        "import torch, regard\n"
        "attend = lambda q: regard.attend(q, q, q, map=regard.sparsemax)\n"
        "ours = torch.compile(attend, backend='eager', fullgraph=True)\n"
        "q = torch.randn(2, 5, 4)\n"
        "got = ours(q)\n"
        "print(torch.allclose(got, attend(q), atol=1e-6))"
    )
    assert in_a_new_process(code) == ["True"]


def test_the_functions_of_a_package_are_its_own():
    ask, names = lazily("regard.swav")
    assert ask("Settings") is regard.swav.Settings
    assert "Settings" in names()
