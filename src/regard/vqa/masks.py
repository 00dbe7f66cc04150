"""Where the masks of regions are: names in a table or in annotations, found in folders, the missing ones noted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard._problem import Problem
from regard.pictures._sources import SUFFIXES
from regard.vqa.records import Skipped


class Masks:
    """Masks by the names that records give them: `found` has their paths, `named` looks for those of a question."""

    def __init__(self, *folders: Path, by_name: bool = False, objects: Mapping[str, Path] | None = None) -> None:
        """Look in folders.

        `folders`: to look in, in this order.
        `by_name`: whether a question that names no mask has the one in the first folder that is called as its picture.
        `objects`: pictures of object numbers, by picture; default None, a number is the name of a mask.
        """
        self.folders, self.by_name, self.objects = folders, by_name, objects
        self.found: dict[str, Path] = {}
        self._missing: set[str] = set()

    def named(self, value: Any, picture: str, where: str, skipped: Skipped) -> tuple[int | str, ...] | None:
        """The regions of a question: names in `found`, or object numbers; None if unknown, or one is missing.

        `value`: what the table or the annotation says: a name, a number, a list of these, or None.
        `picture`: the name of the question's picture.
        `where`: of the question, for notes.
        `skipped`: gets a note for each that is not there.
        """
        if value is None:
            return self._like(picture, skipped) if self.by_name else None
        regions: list[int | str] = []
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, int) and self.objects is not None:
                if picture not in self.objects:
                    skipped.add("region without a mask", f"{where}: no picture of the objects in {picture}")
                    return None
                regions.append(one)
                continue
            name = str(one).strip().replace("\\", "/")
            if name not in self.found:
                path = picture_path(name, *self.folders) if name else None
                if path is None:
                    skipped.add("region without a mask", f"{where}: no mask {self.folders[0] / name}")
                    return None
                self.found[name] = path
            regions.append(name)
        return tuple(regions)

    def _like(self, picture: str, skipped: Skipped) -> tuple[str, ...] | None:
        """The mask that is called as a picture, whatever its ending, in the same folders or the inner ones alone."""
        stem = Path(picture).with_suffix("").as_posix()
        parts = stem.split("/")
        for name in ("/".join(parts[start:]) for start in range(len(parts))):
            if name in self.found:
                return (name,)
            for ending in sorted(SUFFIXES):
                if (path := self.folders[0] / f"{name}{ending}").is_file():
                    self.found[name] = path
                    return (name,)
        if picture not in self._missing:
            self._missing.add(picture)
            skipped.add("picture without a mask", f"{picture}: no {stem}.png in {self.folders[0]}")
        return None


def check_folder(option: str, folder: Path | None) -> None:
    """Raise a Problem that names the option unless it is None or a folder."""
    if folder is not None and not folder.is_dir():
        raise Problem(f"{option} {folder} is not a folder. Check the path.")


def picture_path(name: str, *folders: Path) -> Path | None:
    """A picture in the first of the folders that has it, with or without the ending of its name; None if none has."""
    for folder in dict.fromkeys(folders):
        for ending in ("", *sorted(SUFFIXES)) if not Path(name).suffix else ("",):
            if (path := folder / f"{name}{ending}").is_file():
                return path
    return None
