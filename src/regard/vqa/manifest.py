"""The manifest of features that several processes have made: which folder has which pictures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard._files import replacing
from regard._problem import Problem

HERE = "."  # the part that lies in the folder itself, made by one process before there was a manifest


@dataclass(frozen=True)
class Manifest:
    """The parts of a store: folders in it, each with rows of its own, and the names of their pictures.

    It is written before the rows, so that a run with another number of processes fills the same parts. Rows are
    never moved: the store is all parts one after the other, in the order of the names that one process would have.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = Manifest.read(Path(folder)).with_names(["a", "b", "c"], parts=2)
    ...     manifest.write()
    ...     Manifest.read(Path(folder)).parts == manifest.parts
    True
    >>> manifest.parts
    (('parts/0000', ('a', 'b')), ('parts/0001', ('c',)))
    """

    folder: Path
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder; without parts if there is none."""
        file = folder / "manifest.json"
        if not file.is_file():
            return cls(folder)
        try:
            parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
            return cls(folder, tuple((str(part["folder"]), tuple(map(str, part["names"]))) for part in parts))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Problem(f"{file} cannot be read ({error}). Make the features again: regard features") from error

    @property
    def places(self) -> list[Path]:
        """The folders of the parts."""
        return [self.folder / place for place, _ in self.parts]

    def with_names(self, names: Iterable[str], parts: int, here: Sequence[str] = ()) -> Manifest:
        """With new parts for the names that no part has, of about equal size, in order.

        `names`: of all pictures.
        `parts`: new ones, at most as many as new names.
        `here`: names of the rows in the folder itself, the first part if there is no manifest yet; default none.
        """
        known = self.parts or (((HERE, tuple(here)),) if here else ())
        taken = {name for _, inside in known for name in inside}
        new = [name for name in dict.fromkeys(names) if name not in taken]
        size = -(-len(new) // parts)
        blocks = [tuple(new[start : start + size]) for start in range(0, len(new), size or 1)]
        return Manifest(
            self.folder, (*known, *((f"parts/{len(known) + i:04d}", block) for i, block in enumerate(blocks)))
        )

    def write(self) -> None:
        """Write it, whole."""
        parts = [{"folder": place, "names": names} for place, names in self.parts]
        with replacing(self.folder / "manifest.json") as beside:
            beside.write_text(json.dumps({"parts": parts}), encoding="utf-8")

    def remove(self) -> None:
        """Remove it, and the parts in folders of their own."""
        (self.folder / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "parts", ignore_errors=True)
