"""Samples that a run carries."""

from pathlib import Path

import numpy
import pytest
from PIL import Image

from regard._problem import Problem
from regard.vqa.folder import AnsweringFolder
from regard.vqa.records import Record, Records
from regard.vqa.samples import SAMPLE_PICTURES, SAMPLE_SIDE, keep_samples, read_samples


def _records(folder: Path, count: int, side: int = 32) -> Records:
    folder.mkdir(exist_ok=True)
    pictures, records = {}, []
    for i in range(count):
        noise = numpy.random.default_rng(i).integers(0, 255, (side, 2 * side, 3), dtype=numpy.uint8)
        Image.fromarray(noise).save(folder / f"{i}.png")
        pictures[f"{i}.png"] = folder / f"{i}.png"
        records.append(Record(i, f"{i}.png", "Was ist das?", ("Bär",) * 10, "other", "what"))
    records[-1] = Record(count - 1, f"{count - 1}.png", "Wie viele?", ("2",) * 10, "number", "count", (1, 2))
    return Records("test", records, pictures)


def test_samples_come_back_as_they_were_and_show_every_kind_of_question(tmp_path):
    records = _records(tmp_path / "pictures", 40, side=400)
    folder = AnsweringFolder(tmp_path / "run")
    samples = keep_samples(folder, records)
    assert samples == read_samples(folder)
    assert len(samples) == SAMPLE_PICTURES
    kept = [record for sample in samples for record in sample.records]
    assert {record.question_type for record in kept} == {"what", "count"}
    assert all(record in records.records for record in kept)
    for sample in samples:
        with Image.open(sample.picture) as image:
            assert image.size == (SAMPLE_SIDE, SAMPLE_SIDE // 2)


def test_new_samples_replace_old_ones_and_broken_pictures_are_passed_over(tmp_path):
    records = _records(tmp_path / "pictures", 5)
    folder = AnsweringFolder(tmp_path / "run")
    keep_samples(folder, records)
    (tmp_path / "pictures" / "0.png").write_bytes(b"not a picture")
    (tmp_path / "pictures" / "1.png").unlink()
    assert {sample.name for sample in keep_samples(folder, records)} == {"2.png", "3.png", "4.png"}
    assert [path.name for path in folder.path.iterdir()] == ["samples"]


def test_a_broken_index_is_one_line(tmp_path):
    folder = AnsweringFolder(tmp_path)
    folder.samples.mkdir()
    (folder.samples / "samples.json").write_text("{")
    with pytest.raises(Problem, match=r"samples\.json cannot be read"):
        read_samples(folder)


def test_a_file_outside_the_folder_is_never_named(tmp_path):
    folder = AnsweringFolder(tmp_path)
    folder.samples.mkdir()
    (folder.samples / "samples.json").write_text('{"samples": [{"name": "a", "file": "../../secret", "records": []}]}')
    assert read_samples(folder)[0].picture == folder.samples / "secret"
