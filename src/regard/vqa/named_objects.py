"""Objects of thirteen classes that a question, or its answer, names, in masks of NYU Depth V2 (for DAQUAR).

The masks are those that are distributed as nyuv2-meta-data: `new_nyu_class13_0009.png` has at each pixel of the whole
frame the number of its class, 0 for none, and belongs to DAQUAR's `image9`, which is that frame without its border.
Stuff that is everywhere (wall, floor, ceiling, furniture, "objects") is not looked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from regard.vqa.records import Skipped
from regard.vqa.words import tokens

_MASK_FILE = re.compile(r".*nyu_class13_0*(\d+)\.png")

Window = tuple[int, int, int, int]
"""A part of a picture in pixels: top, left, height, width."""

FRAME, INNER = (480, 640), (425, 560)  # of NYU Depth V2, and of DAQUAR's pictures
BORDER: Window = (45, 41, *INNER)  # what DAQUAR's pictures show of the frame

#: The classes by number, and the words that name an object of one; as NYU maps its 894 names to the classes: a single
#: book, a photo and a stool are not among them.
CLASSES: dict[int, tuple[str, ...]] = {
    1: ("bed", "beds"),
    2: ("books",),
    4: ("chair", "chairs", "armchair", "armchairs"),
    8: ("picture", "pictures"),
    9: ("sofa", "sofas", "couch", "couches"),
    10: ("table", "tables", "desk", "desks"),
    11: ("television", "televisions", "tv", "tvs"),
    13: ("window", "windows"),
}
_CLASS_OF = {word: number for number, words in CLASSES.items() for word in words}
# Words that make something else of the object before them (a table lamp), or of that after them (a coffee table is
# furniture in these classes); and "in this picture".
_COMPOUNDS = {
    "after": "sheet sheets cover rack racks shelf shelves case stand stands board seat seats seater legs arm base "
    "cushions cloth mat mats runner fan fans lamp lamps drawer drawers unit dvd screen screens shutter shutters casing "
    "casings frame frames pane curtain curtains blind blinds wall closet",
    "before": "bunk coffee drawer side night bedside tea this toy kid",
}
_FOLLOWING, _LEADING = (frozenset(words.split()) for words in _COMPOUNDS.values())
_THE_WHOLE = {("in", "the"), ("in", "a"), ("of", "the")}  # before "picture": all of it


def named_classes(text: str) -> tuple[int, ...]:
    """The numbers of the classes that a text names, in order, each once.

    >>> named_classes("what is on the table next to the beds?"), named_classes("how many table lamps are there?")
    ((1, 10), ())
    """
    words = ["", "", *tokens(text.replace("_", " ")), ""]
    found = set()
    for i in range(2, len(words) - 1):
        number = _CLASS_OF.get(words[i])
        if number is None or words[i + 1] in _FOLLOWING or words[i - 1] in _LEADING:
            continue
        if words[i] != "picture" or (words[i - 2], words[i - 1]) not in _THE_WHOLE:
            found.add(number)
    return tuple(sorted(found))


@dataclass(frozen=True)
class NamedObjects:
    """Masks of classes, by the name of the picture."""

    files: dict[str, Path]

    @classmethod
    def in_folder(cls, folder: Path) -> NamedObjects | None:
        """The masks in a folder or below it; None if it has none of these names."""
        matches = ((_MASK_FILE.fullmatch(path.name), path) for path in sorted(folder.rglob("*nyu_class13_*.png")))
        files = {f"image{match[1]}": path for match, path in matches if match}
        return cls(files) if files else None

    def named(self, text: str, picture: str, skipped: Skipped) -> tuple[int, ...] | None:
        """The classes that a text about a picture names; None if it names none, or the picture has no mask."""
        if picture not in self.files:
            sentence = f"{picture}: no mask nyu_class13_{picture.removeprefix('image')}.png"
            if ("picture without a mask", sentence) not in skipped.notes:
                skipped.add("picture without a mask", sentence)
            return None
        return named_classes(text) or None

    def window(self, pictures: dict[str, Path]) -> Window | None:
        """What the pictures show of the frame of the masks; None for all of it: they have the size of the masks."""
        from PIL import Image

        for name in sorted(self.files.keys() & pictures.keys()):
            with Image.open(self.files[name]) as mask, Image.open(pictures[name]) as shown:
                return BORDER if mask.size == FRAME[::-1] and shown.size != mask.size else None
        return None
