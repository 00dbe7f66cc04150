"""A table of questions about real photographs, from the annotations of the Oxford-IIIT pets, for `regard vqa`.

    python examples/pets_table.py oxford-iiit-pet/ questions.csv    # with images/ and annotations/, as distributed
    regard vqa oxford-iiit-pet/images questions.csv

Four questions per photograph: which animal, which breed, where it is (by the middle of its mask), how much of the
photograph it fills. 50 photographs of each of the 37 breeds, chosen from a fixed seed.
"""

import argparse
import csv
import random
from pathlib import Path

import numpy
from PIL import Image

PLACES = ((0.44, "left"), (0.56, "middle"), (1.0, "right"))  # upper ends, of the mean of the mask from the left
SHARES = ((0.25, "less than a quarter"), (0.42, "about a third"), (0.58, "about a half"), (1.0, "most of it"))
CAT = 1  # in the column "species" of list.txt


def first_within(value, choices):
    """The first choice whose upper end is not below the value."""
    return next(name for end, name in choices if value <= end)


def rows_about(folder, name, species):
    """(picture, question, answer) about one photograph; none if its mask is missing or empty."""
    picture, trimap = folder / "images" / f"{name}.jpg", folder / "annotations" / "trimaps" / f"{name}.png"
    if not picture.is_file() or not trimap.is_file():
        return
    with Image.open(trimap) as image:
        mask = numpy.isin(numpy.asarray(image.convert("L")), (1, 3))  # the animal and its outline; 2 is the background
    if not mask.any():
        return
    middle = mask.nonzero()[1].mean() / mask.shape[1]
    yield picture.name, "What animal is this?", "cat" if species == CAT else "dog"
    yield picture.name, "Which breed is it?", name.rpartition("_")[0].replace("_", " ").lower()
    yield picture.name, "Where is the animal?", first_within(middle, PLACES)
    yield picture.name, "How much of the photograph does it fill?", first_within(mask.mean(), SHARES)


def main():
    """Choose the photographs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the data, with images/ and annotations/")
    parser.add_argument("table", type=Path, help="the file to write")
    parser.add_argument("--per-breed", type=int, default=50, help="photographs of each breed; default 50")
    options = parser.parse_args()
    breeds = {}
    for line in (options.folder / "annotations" / "list.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, breed, species, _ = line.split()
            breeds.setdefault(int(breed), []).append((name, int(species)))
    draw = random.Random(0)
    rows = []
    for photographs in breeds.values():
        draw.shuffle(photographs)
        for name, species in photographs[: options.per_breed]:
            rows += rows_about(options.folder, name, species)
    with options.table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "question", "answer"), *rows])
    print(f"{len(rows)} questions about {len({row[0] for row in rows})} photographs: {options.table}")


if __name__ == "__main__":
    main()
