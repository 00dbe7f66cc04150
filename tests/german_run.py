"""A tiny run that answers German questions about the colours of two halves of a picture, with all its files."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from regard.backbones import make_backbone, save_backbone
from regard.training import Running
from regard.vqa.evaluate import Evaluation
from regard.vqa.features import make_features
from regard.vqa.own import read_own
from regard.vqa.records import Records
from regard.vqa.settings import small, small_training
from regard.vqa.train import train

COLOURS = {"rot": 0, "grün": 1, "blau": 2}
SIZE = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8, "dropout": 0.0}


@dataclass(frozen=True)
class GermanRun:
    """The folder of a run, its table, the records of both splits and the evaluation on the held-out one."""

    path: Path
    table: Path
    train: Records
    test: Records
    evaluation: Evaluation


def write_table(folder: Path, count: int = 32, size: tuple[int, int] = (48, 32)) -> Path:
    """Pictures of two coloured halves, a quarter of them in the split "test", and a table of questions about them."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    lines = ["bild;image;question;answer;split"]
    width, height = size
    for i in range(count):
        left, right = (list(COLOURS)[j] for j in torch.randint(0, 3, (2,), generator=generator).tolist())
        pixels = torch.randint(0, 60, (height, width, 3), dtype=torch.uint8, generator=generator)
        pixels[:, : width // 2, COLOURS[left]] = 230
        pixels[:, width // 2 :, COLOURS[right]] = 230
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
        split = "test" if i % 4 == 0 else "train"
        for side, colour in (("linke", left), ("rechte", right)):
            lines.append(f"{i};{i}.png;Welche Farbe hat die {side} Hälfte?;{colour};{split}")
        lines.append(f"{i};{i}.png;Ist die linke Hälfte grün?;{'ja' if left == 'grün' else 'nein'};{split}")
    table = folder / "fragen.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def german_run(folder: Path, attention: str = "continuous-softmax", epochs: int = 16) -> GermanRun:
    """Train on the table; samples of the held-out pictures are kept in the run."""
    table = write_table(folder / "bilder")
    records, held = read_own(table, "train"), read_own(table, "test")
    torch.manual_seed(0)
    backbone = make_backbone("small", size=16, widths=[8, 16], depths=[1, 1])
    saved = save_backbone(backbone, folder / "backbone")
    store, _ = make_features(folder / "features", records.pictures | held.pictures, backbone, name=str(saved))
    settings = small_training(model=small(**SIZE, attention=attention), epochs=epochs, batch=24, above=1)
    trained = train(
        folder / "run", records, store, settings, validation=held, running=Running(progress=False, log="none")
    )
    return GermanRun(folder / "run", table, records, held, trained.evaluation)
