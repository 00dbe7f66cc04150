"""Pictures, checkpoints and tables with random damage: a clear error or a right result; no crash, no hang, no NaN."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from PIL import Image

from regard import pictures
from regard._problem import Problem
from tools.fuzz.numbers import Wrong

# What may be raised on damage: errors in words. Anything else, a KeyError or a struct.error, was not foreseen.
CLEAR = (Problem, ValueError, TypeError, OSError)


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Content with bytes changed, cut off, doubled, swapped or put in between."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5, 30])):
        if not data:
            break
        place, kind = draw.randrange(len(data)), draw.randrange(6)
        if kind == 0:
            data[place] = draw.randrange(256)
        elif kind == 1:
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 2:
            del data[place : place + draw.choice([1, 2, 8, 100])]
        elif kind == 3:
            data[place:place] = draw.randbytes(draw.choice([1, 4, 50]))
        elif kind == 4:
            del data[place:]
        else:
            data[place : place + 4] = draw.choice(
                [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"1e99", b"-1,"]
            )
    return bytes(data)


def clear(what: str, action: Callable[[], object]) -> bool:
    """Whether an action succeeded; an error must be clear, and of one line."""
    try:
        action()
    except CLEAR as error:
        words = str(error)
        if not words.strip() or len(words) > 2000:
            raise Wrong(f"{what}: {type(error).__name__} with {len(words)} letters") from error
        return False
    except RecursionError as error:
        raise Wrong(f"{what}: {type(error).__name__}") from error
    return True


@cache
def samples() -> dict[str, bytes]:
    """A small picture in each format and mode."""
    made = {}
    for kind, modes in {
        "PNG": ("RGB", "RGBA", "L", "P", "I;16", "1", "LA"),
        "JPEG": ("RGB", "L", "CMYK"),
        "GIF": ("P",),
        "BMP": ("RGB", "L"),
        "TIFF": ("RGB", "I;16", "F"),
        "WEBP": ("RGB", "RGBA"),
    }.items():
        for mode in modes:
            written = io.BytesIO()
            noise = Image.effect_noise((23, 17), 90)
            picture = Image.new(mode, (23, 17)) if mode in ("I;16", "F") else noise.convert("RGB").convert(mode)
            picture.save(written, kind)
            made[f"{kind} {mode}"] = written.getvalue()
    return made


def picture(draw: random.Random) -> str:
    """A damaged picture, read from memory and from a file whose name may tell another format."""
    kind = draw.choice(list(samples()))
    data = damaged(draw, samples()[kind])

    def read(source: object) -> None:
        found = pictures.read(source, max_pixels=1_000_000)  # type: ignore[arg-type]
        if found.dtype != torch.uint8 or found.dim() != 3 or found.shape[0] != 3 or found.numel() > 3_000_000:
            raise Wrong(f"picture {kind}: {found.dtype} {tuple(found.shape)}")

    if draw.random() < 0.5:
        well = clear(f"picture {kind}", lambda: read(data))
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"a.{draw.choice(['png', 'jpg', 'gif', 'tif', 'webp', 'bmp'])}"
            path.write_bytes(data)
            well = clear(f"picture {kind}", lambda: read(path))
    return f"picture {'read' if well else 'refused'}"


@cache
def runs() -> Path:
    """A run of question answering, a store of features and a saved backbone, all tiny; made once."""
    from tools.load import tiny_run

    folder = Path(tempfile.mkdtemp(prefix="regard-fuzz-"))
    tiny_run(folder)
    return folder


def remove_runs() -> None:
    """Remove what `runs` has made."""
    if runs.cache_info().currsize:
        shutil.rmtree(runs(), ignore_errors=True)


def _linked(source: Path, target: Path) -> None:
    """A copy of a folder whose files are links, which damage replaces by files of its own."""
    shutil.copytree(source, target, copy_function=os.link)


def checkpoint(draw: random.Random) -> str:
    """One damaged file in the folder of a run, its checkpoint, its backbone or its features; then all are used."""
    from regard.vqa.feature_store import FeatureStore
    from regard.vqa.predict import Predictor

    part = draw.choice(["run", "features"])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / part
        _linked(runs() / part, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 1 << 24)
        victim = draw.choice(files)
        content = damaged(draw, victim.read_bytes())
        victim.unlink()
        if draw.random() > 0.05:
            victim.write_bytes(content)
        what = f"{part}: {victim.relative_to(folder)}"

        def ask() -> None:
            predictor = Predictor.load(folder)
            words = " ".join(predictor.words.known[:3]) or "what"
            answer = predictor.ask(torch.zeros(3, 32, 32, dtype=torch.uint8), words).to_json()
            json.dumps(answer, allow_nan=False)

        def look() -> None:
            store = FeatureStore.open(folder)
            _ = store[list(store.names)[:2]], store.origins, store.sample(2)

        well = clear(what, ask if part == "run" else look)
    return f"{part} {'used' if well else 'refused'}"


ROWS = [("image", "question", "answer"), ("a.png", "what is it?", "a cat"), ("b.png", "how many?", "2|two|2")]


def table(draw: random.Random) -> str:
    """A damaged table of questions, as CSV, JSON lines or a JSON list."""
    from regard.vqa.own import read_own

    kind = draw.choice(["csv", "jsonl", "json"])
    if kind == "csv":
        text = io.StringIO()
        csv.writer(text, delimiter=draw.choice(",;\t|")).writerows(ROWS * draw.choice([1, 3]))
        content = text.getvalue().encode(draw.choice(["utf-8", "utf-8-sig", "utf-16"]))
    else:
        records: list[object] = [dict(zip(ROWS[0], row, strict=True)) for row in ROWS[1:]]
        for _ in range(draw.randrange(3)):
            odd = draw.choice(
                [None, 3, [], "text", {}, {"image": None}, {"image": ["a"], "question": {}}, [[]], True, 1e308]
            )
            records.insert(draw.randrange(len(records) + 1), odd)
        content = (json.dumps(records) if kind == "json" else "\n".join(map(json.dumps, records))).encode()
    if draw.random() < 0.7:
        content = damaged(draw, content)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("a.png", "b.png"):
            (folder / name).write_bytes(samples()["PNG RGB"])
        (folder / f"q.{kind}").write_bytes(content)
        well = clear(f"table {kind}", lambda: read_own(folder / f"q.{kind}"))
    return f"table {'read' if well else 'refused'}"
