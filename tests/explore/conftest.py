"""A tiny model trained on German questions."""

import pytest
import torch
from PIL import Image, ImageDraw

from regard.backbones import make_backbone, save_backbone
from regard.training import Running
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.records import Record, Records
from regard.vqa.settings import small, small_training
from regard.vqa.train import train

COLOURS = {"rot": (200, 30, 30), "grün": (20, 160, 40), "weiß": (250, 250, 250)}
PLACES = {"über": 10, "unter": 34}


@pytest.fixture(scope="session")
def german_run(tmp_path_factory):
    """A run on pictures of a coloured disc above or below a line, asked in German; hardly trained."""
    folder = tmp_path_factory.mktemp("deutsch")
    records = {split: _german_records(folder / split, split, count) for split, count in (("train", 24), ("val", 8))}
    torch.manual_seed(0)
    # 7 x 7 cells, which do not divide the pixels of any usual map.
    backbone = make_backbone("small", size=28, widths=[8, 16], depths=[1, 1], stem_stride=2)
    pictures = records["train"].pictures | records["val"].pictures
    save_backbone(backbone, folder / "backbone")
    make_features(folder / "features", pictures, backbone, name=str(folder / "backbone"))
    sizes = small(width=16, heads=2, layers=1, feed_forward=32, flat=16, fused=24, words=8)
    settings = small_training(model=sizes, epochs=2, batch=16, above=0)
    store = FeatureStore.open(folder / "features")
    quiet = Running(progress=False)
    train(folder / "run", records["train"], store, settings, validation=records["val"], running=quiet)
    return folder / "run"


def _german_records(folder, split, count):
    folder.mkdir()
    pictures, records = {}, []
    for i in range(count):
        colour, place = list(COLOURS)[i % 3], list(PLACES)[i % 2]
        image = Image.new("RGB", (96, 64), (90, 100, 110))
        draw = ImageDraw.Draw(image)
        draw.line((0, 32, 96, 32), (0, 0, 0), 2)
        left = 10 + 7 * (i % 9)
        draw.ellipse((left, PLACES[place], left + 20, PLACES[place] + 20), COLOURS[colour])
        name = f"{split}-Äpfel {i}.png"
        image.save(folder / name)
        pictures[name] = folder / name
        records += [
            Record(2 * i, name, "Welche Farbe hat die größte Scheibe?", (colour,) * 10, "other", "welche farbe"),
            Record(2 * i + 1, name, "Ist die Scheibe über der Linie?", (("ja" if place == "über" else "nein"),) * 10),
        ]
    return Records(split, records, pictures)
