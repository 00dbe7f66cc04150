"""Where commands write by default: a folder named after what they read, so that two inputs do not meet in one."""

from __future__ import annotations

import re
from pathlib import Path

OUTPUTS = Path("out")
"""The folder that holds the results of commands without `--out`."""


def default_folder(source: Path | str, purpose: str = "") -> Path:
    """The folder in out/ for what is made of a file or a folder: the names on the way to it, and the purpose.

    A path that is not below the working folder counts with its last two names, and so does a URL.

    >>> default_folder(Path("out/scenes"), "features").as_posix()
    'out/scenes-features'
    >>> default_folder(Path("pets/train/"), "pretrained").as_posix()
    'out/pets-train-pretrained'
    >>> default_folder(Path("/data/pets/questions.csv"), "features").as_posix()
    'out/pets-questions-features'
    >>> default_folder("s3://mine/pets/{000..127}.tar", "pretrained").as_posix()
    'out/pets-000-127-pretrained'
    """
    if "://" in str(source):
        parts = re.findall(r"[\w.-]*\w", str(source).partition("://")[2].removesuffix(".tar").replace("..", "-"))
        names = ["-".join(re.findall(r"\w[\w.-]*", part)) for part in parts]
        return OUTPUTS / "-".join([*names[-2:], purpose] if purpose else names[-2:])
    source = Path(source)
    names = list(source.parts)
    if source.is_absolute() or ".." in names or not names:
        names = list(source.resolve().parts[1:][-2:])
    if len(names) > 1 and names[0] == OUTPUTS.name:
        del names[0]
    if source.suffix and not source.is_dir():
        names[-1] = Path(names[-1]).stem
    return OUTPUTS / "-".join([*names, purpose] if purpose else names)
