"""The embedded benchmark: same seed same bytes, answers that are true, balance, regions, disjoint splits."""

import hashlib
import json
from collections import Counter, defaultdict

import numpy
import pytest
from PIL import Image

from regard.scenes import COLOURS, FAMILIES, HELD_OUT, SHAPES, Scenes, make_scene, render, write_scenes
from regard.scenes.questions import TEMPLATES
from regard.scenes.write import uncompressed_png


def test_pictures_are_the_same_bytes_everywhere():
    """No random draw and no rounding may change unnoticed."""
    digest = hashlib.sha256()
    for i in range(20):
        drawn = render(make_scene(f"0/train/{i}"))
        digest.update(drawn.picture.tobytes() + drawn.objects.tobytes())
    assert digest.hexdigest()[:16] == "ddf26053b72cf79d"
    assert not numpy.array_equal(Scenes("train", 1, seed=0).picture(0), Scenes("train", 1, seed=1).picture(0))


def test_a_picture_does_not_depend_on_the_others():
    assert bool((Scenes("val", 9).picture(7) == Scenes("val", 3, 0).picture(7)).all())


@pytest.fixture(scope="module")
def many():
    return Scenes("train", 300)


def test_questions_are_true(many):
    """Every answer is read off the objects again, by name."""
    for q in many.questions:
        things = many.scene(q.picture).things
        words = q.text.lower().replace("?", "").replace(".", "").replace(",", "").split()
        colours = [w for w in words if w in COLOURS]
        shapes = [w for w in words if w in SHAPES]
        seen = [things[i - 1] for i in q.regions]
        if q.family == "exists":
            assert (q.answer == "yes") == any(t.is_a(colour=colours[0], shape=shapes[0]) for t in things)
        elif q.family == "how many":
            assert int(q.answer) == len(q.regions)
        elif q.family in ("colour", "shape"):
            assert [q.answer] == [getattr(t, q.family) for t in seen]
        elif q.family == "where":
            (t,) = seen
            assert q.answer == ("top" if t.y < 0.5 else "bottom") + (" left" if t.x < 0.5 else " right")
        elif q.family == "relation":
            one, other = seen
            axis, sign = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}[q.answer]
            gap = (one.x - other.x, one.y - other.y)
            assert gap[axis] * sign >= 2 * abs(gap[1 - axis])
            assert {one.colour, other.colour} == set(colours)
        else:
            one, nearest = seen
            apart = {id(t): (t.x - one.x) ** 2 + (t.y - one.y) ** 2 for t in things if t is not one}
            assert apart[id(nearest)] == min(apart.values())
            assert q.answer in (nearest.colour, nearest.shape)


def test_answers_are_balanced_and_wordings_vary(many):
    answers = defaultdict(Counter)
    for q in many.questions:
        answers[q.family][q.answer] += 1
    assert set(answers) == set(FAMILIES)
    for family, counts in answers.items():
        assert max(counts.values()) < 2 * min(counts.values()), (family, counts)
    assert all(len(wordings) >= 3 for wordings in TEMPLATES.values())
    starts = {q.text.split()[0] for q in many.questions}
    assert len(starts) >= 8


def test_pairs_are_held_out(many):
    def pairs(scenes):
        return {(t.colour, t.shape) for i in range(scenes.count) for t in scenes.scene(i).things}

    assert len(HELD_OUT) == len(COLOURS)
    assert not pairs(many) & HELD_OUT
    assert pairs(Scenes("pairs", 60)) >= HELD_OUT
    texts = " ".join(q.text for q in many.questions)
    assert not any(f"{colour} {shape}" in texts for colour, shape in HELD_OUT)


def test_objects_lie_where_the_picture_shows_them():
    for i in range(20):
        scene = make_scene(f"3/val/{i}")
        picture, objects = render(scene)
        for number, thing in enumerate(scene.things, start=1):
            mine = objects == number
            assert mine.sum() > 20
            if thing.texture == "plain":
                mean = picture[:, mine].mean(1)
                nearest = min(COLOURS, key=lambda name: numpy.abs(mean - COLOURS[name]).sum())
                assert nearest == thing.colour


def test_written_as_vqa_v2(tmp_path):
    scenes = Scenes("val", 3)
    write_scenes(scenes, tmp_path / "a")
    write_scenes(scenes, tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert len(files) == 2 + 3 + 3
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    asked = json.loads((tmp_path / "a" / "v2_OpenEnded_mscoco_val_questions.json").read_text())["questions"]
    told = json.loads((tmp_path / "a" / "v2_mscoco_val_annotations.json").read_text())["annotations"]
    assert [q["question_id"] for q in asked] == [a["question_id"] for a in told]
    assert all(len(a["answers"]) == 10 for a in told)
    with Image.open(tmp_path / "a" / "val" / "COCO_val_000000000002.png") as picture:
        assert numpy.array_equal(numpy.asarray(picture).transpose(2, 0, 1), scenes.picture(2))
    with Image.open(tmp_path / "a" / "objects" / "val" / "COCO_val_000000000002.png") as objects:
        assert numpy.array_equal(numpy.asarray(objects), scenes.objects(2))


def test_several_processes_write_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.scenes.write._MANY", 1)
    write_scenes(Scenes("val", 5), tmp_path / "a")
    write_scenes(Scenes("val", 5), tmp_path / "b", workers=2)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert files == sorted(p.relative_to(tmp_path / "b") for p in (tmp_path / "b").rglob("*.*"))
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_png_with_several_blocks(tmp_path):
    pixels = numpy.random.RandomState(0).randint(0, 256, (200, 150, 3)).astype(numpy.uint8)
    (tmp_path / "a.png").write_bytes(uncompressed_png(pixels))
    with Image.open(tmp_path / "a.png") as picture:
        assert numpy.array_equal(numpy.asarray(picture), pixels)
