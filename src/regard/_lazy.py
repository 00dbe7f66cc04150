"""Packages that import their public names at first use: `import regard` and the help of commands need no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package (PEP 562) whose public names are in its module `_public`.

    `_public` imports the names and lists them in `__all__`, once. The first of them that is asked for imports them all;
    so do `dir` and `from package import *`. A module of the package that is asked for is imported alone.

    `package`: its name; in its `__init__.py`, where type checkers read the import and Python runs the other branch:

        if TYPE_CHECKING:
            from package._public import *
        else:
            __getattr__, __dir__ = lazily(__name__)

    >>> ask, _ = lazily("regard")
    >>> ask("_problem").Problem.__name__, ask("attend").__name__
    ('Problem', 'attend')
    >>> ask("atend")
    Traceback (most recent call last):
    AttributeError: module 'regard' has no attribute 'atend'
    """

    def public() -> list[str]:
        """All public names, which from now on are attributes of the package."""
        module = import_module(f"{package}._public")
        names: list[str] = module.__all__
        own = vars(sys.modules[package])
        for name in names:
            own.setdefault(name, getattr(module, name))  # what somebody has replaced stays
        own.setdefault("__all__", names)
        return names

    def attribute(name: str) -> Any:
        if not name.startswith("__"):
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":  # it is there, and lacks another
                    raise
        if name == "__all__" or not name.startswith("_"):
            names = public()
            if name == "__all__" or name in names:
                return vars(sys.modules[package])[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*public(), *vars(sys.modules[package])})

    return attribute, listed
