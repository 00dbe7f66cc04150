"""The command that installs what is missing, in the way that this regard was installed: index, clone, wheel or URL.

`pip install 'regard[show]'` is right only if regard came from an index: pip would look for it there. What pip recorded
(`direct_url.json` of PEP 610, which other installers write too) says where it came from.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

_PACKAGE = Path(__file__).resolve().parent


def install_extra(extra: str) -> str:
    """The shell command that adds an extra of regard to this environment.

    `extra`: its name in pyproject.toml, such as "show".

    >>> command = install_extra("show")
    >>> "pip install" in command, "[show]" in command
    (True, True)
    """
    clone, record = _clone(), _record()
    if clone is not None:
        return install_packages("-e", f"{clone}[{extra}]")
    if (origin := _file(record)) is None:
        return install_packages(_named(record, f"[{extra}]"))
    if origin.exists():
        return install_packages(f"{origin}[{extra}]")
    return install_packages(*dict.fromkeys(_requirements(extra)))  # the file is gone: what the extra consists of


def install_packages(*packages: str) -> str:
    """The shell command that installs packages for this Python, quoted.

    `packages`: arguments of `pip install`.

    >>> install_packages("pyarrow").endswith(" pyarrow")
    True
    """
    return " ".join([*_pip_install(), *map(_quoted, packages)])


def update_regard() -> str:
    """The shell commands that install a newer regard, in words.

    >>> "install" in update_regard()
    True
    """
    clone, record = _clone(), _record()
    if clone is not None:
        return f"git -C {_quoted(str(clone))} pull, then {install_packages('-e', str(clone))}"
    origin = _file(record)
    if origin is not None and origin.is_dir():
        return f"git -C {_quoted(str(origin))} pull, then {install_packages(str(origin))}"
    return install_packages("--upgrade", "regard" if origin is not None else _named(record))


def _clone() -> Path | None:
    """The clone that this code runs from, installed as editable or found by PYTHONPATH; None elsewhere."""
    root = _PACKAGE.parent.parent
    return root if _PACKAGE.parent.name == "src" and (root / "pyproject.toml").is_file() else None


def _record() -> dict[str, object]:
    """What the installer recorded of the place that regard came from; empty if that was an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution("regard").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError, OSError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("url"), str) else {}


def _file(record: dict[str, object]) -> Path | None:
    """The folder or the file that regard was installed from, which may be gone; None if it was none."""
    from urllib.request import url2pathname

    url = urlsplit(str(record.get("url", "")))
    return Path(url2pathname(url.path)) if url.scheme == "file" and "vcs_info" not in record else None


def _named(record: dict[str, object], extra: str = "") -> str:
    """The requirement `regard` with an extra, from the recorded URL if there is one."""
    if not record:
        return f"regard{extra}"
    url, vcs = str(record["url"]), record.get("vcs_info")
    if isinstance(vcs, dict):
        revision = vcs.get("requested_revision")
        url = f"{vcs.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")
    folder = record.get("subdirectory")
    return f"regard{extra} @ {url}" + (f"#subdirectory={folder}" if folder else "")


def _requirements(extra: str) -> Iterator[str]:
    """The packages that an extra consists of."""
    from importlib.metadata import requires

    for line in requires("regard") or ():
        requirement, _, marker = line.partition(";")
        if re.search(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""", marker):
            if own := re.fullmatch(r"regard\[(.+)\]", requirement.strip()):
                for other in own[1].split(","):
                    yield from _requirements(other.strip())
            else:
                yield requirement.strip()


def _pip_install() -> list[str]:
    """The words that install for this Python: `pip install` where that pip is the one of the active environment."""
    folder, found = Path(sys.executable).parent, shutil.which("pip")
    if sys.prefix != sys.base_prefix and found is not None and Path(found).parent == folder:
        return ["pip", "install"]
    if find_spec("pip") is None and shutil.which("uv") is not None:  # environments of uv have no pip
        return ["uv", "pip", "install", "--python", _quoted(sys.executable)]
    return [_quoted(sys.executable), "-m", "pip", "install"]


def _quoted(word: str) -> str:
    """The word as a shell takes it; the shells of Windows know only double quotes."""
    if os.name != "nt":
        return shlex.quote(word)
    return word if re.fullmatch(r"[\w@%+=:,./\\-]+", word) else f'"{word}"'
