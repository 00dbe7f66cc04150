"""A split on disk in the form of VQA-v2: questions, annotations and pictures, the same bytes every time."""

from __future__ import annotations

import json
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from regard import _check
from regard._files import replacing
from regard._workers import run_parallel
from regard.scenes.render import render
from regard.scenes.splits import Question, Scenes

_MANY = 1000  # scenes from which on several processes save time
PEOPLE = 10  # VQA-v2 has ten answers to each question; here they agree


def write_scenes(scenes: Scenes, folder: Path | str, *, workers: int = 1) -> Path:
    """Write a split to `folder`, and return the folder.

        v2_OpenEnded_mscoco_train_questions.json    questions
        v2_mscoco_train_annotations.json            answers, families as question types, regions
        train/COCO_train_000000000007.png           pictures
        objects/train/COCO_train_000000000007.png   for each pixel the object in front, counted from one, or 0

    An annotation has, beside the fields of VQA-v2, "regions": the numbers of the objects that the answer depends on. A
    split that is already complete is not written again. `workers` processes draw, default 1; the bytes are the same.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     sorted(p.name for p in write_scenes(Scenes("val", 2), place).iterdir())
    ['objects', 'v2_OpenEnded_mscoco_val_questions.json', 'v2_mscoco_val_annotations.json', 'val']
    """
    folder, split = Path(folder), scenes.split
    head = {"info": {"scenes": split, "count": scenes.count, "seed": scenes.seed, "size": scenes.size}}
    questions_path = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    if questions_path.exists() and _head(questions_path) == head["info"]:
        return folder
    for place in (folder / split, folder / "objects" / split):
        place.mkdir(parents=True, exist_ok=True)
    _draw_all(scenes, folder, workers)
    kind = {"task_type": "Open-Ended", "data_type": "scenes", "data_subtype": split}
    annotations = [_annotation(question) for question in scenes.questions]
    _write(folder / f"v2_mscoco_{split}_annotations.json", head | kind | {"annotations": annotations})
    questions = [{"image_id": q.picture, "question": q.text, "question_id": q.id} for q in scenes.questions]
    # The questions last: if this file exists, the split is complete.
    _write(questions_path, head | kind | {"questions": questions})
    return folder


def _draw_all(scenes: Scenes, folder: Path, workers: int) -> None:
    """Draw in this process, or in `workers` processes if there are many scenes."""
    if _check.count("workers", workers) == 1 or scenes.count < _MANY:
        _draw_pictures(scenes, folder, range(scenes.count))
        return
    parts = [range(first, scenes.count, workers) for first in range(workers)]

    def look() -> None:
        _ = scenes.questions  # a cached property: computed here while the workers draw

    run_parallel(partial(_draw_pictures, scenes, folder), parts, workers, look=look)


def _draw_pictures(scenes: Scenes, folder: Path, numbers: range) -> None:
    for number in numbers:
        drawn = render(scenes.scene(number), scenes.size)
        name = f"COCO_{scenes.split}_{number:012d}.png"
        (folder / scenes.split / name).write_bytes(uncompressed_png(numpy.moveaxis(drawn.picture, 0, -1)))
        (folder / "objects" / scenes.split / name).write_bytes(uncompressed_png(drawn.objects))


def uncompressed_png(pixels: NDArray[numpy.uint8]) -> bytes:
    """A PNG without compression: the output of compressors differs between machines, stored bytes do not.

    `pixels` is (height, width, 3) or (height, width).

    >>> uncompressed_png(numpy.zeros((2, 3), numpy.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    rows = pixels.reshape(height, -1)
    raw = numpy.concatenate([numpy.zeros((height, 1), numpy.uint8), rows], axis=1).tobytes()
    blocks = [raw[i : i + 65535] for i in range(0, len(raw), 65535)]
    stored = b"".join(
        struct.pack("<BHH", i == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for i, block in enumerate(blocks)
    )
    data = b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(raw))
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _annotation(question: Question) -> dict[str, Any]:
    answers = [{"answer": question.answer, "answer_confidence": "yes", "answer_id": i} for i in range(1, PEOPLE + 1)]
    return {
        "question_id": question.id,
        "image_id": question.picture,
        "question_type": question.family,
        "answer_type": question.answer_type,
        "multiple_choice_answer": question.answer,
        "answers": answers,
        "regions": list(question.regions),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content))


def _head(path: Path) -> dict[str, Any] | None:
    """The settings in a file of questions, or None if it cannot be read."""
    try:
        head: dict[str, Any] | None = json.loads(path.read_text()).get("info")
        return head
    except (ValueError, AttributeError):
        return None
