"""The feature store: half precision, resumable, repaired row by row, with the backbone's fingerprint."""

import json
import os
import pickle
import shutil
from dataclasses import replace

import pytest
import torch

from regard._problem import Problem
from regard.backbones import fingerprint, make_backbone
from regard.scenes import Scenes, write_scenes
from regard.vqa.description import FeatureDescription
from regard.vqa.feature_store import MADE
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.read import read_questions


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    return make_backbone("small", size=32, widths=[4, 8], depths=[1, 1])


def pictures(count):
    return {f"picture {i}": p for i, p in enumerate(Scenes("val", count, size=32).pictures)}


def test_rows_are_what_the_backbone_gives(tmp_path, backbone):
    some = pictures(5)
    store, skipped = make_features(tmp_path / "f", some, backbone, batch=2)
    assert not skipped
    assert store.shape == (16, 16, 8)
    with torch.no_grad():
        expected = backbone.eval()(backbone.prepare(torch.stack(list(some.values())))).permute(0, 2, 3, 1)
    got = store[list(some)]
    assert got.dtype == torch.float32
    assert torch.allclose(got, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(store[["picture 3"]], store[list(some)][3:4])
    assert (tmp_path / "f" / "features.bin").stat().st_size == 5 * 16 * 16 * 8 * 2
    assert torch.equal(pickle.loads(pickle.dumps(store))[["picture 1"]], store[["picture 1"]])


def test_all_stages(tmp_path, backbone):
    store, _ = make_features(tmp_path, pictures(2), backbone, stages=True)
    assert store.shape == (16, 16, 12)
    last, _ = make_features(tmp_path / "last", pictures(2), backbone)
    assert torch.equal(store[list(store.names)][..., 4:], last[list(store.names)])
    assert store.description.weights == last.description.weights == fingerprint(backbone)
    assert store.description.fingerprint != last.description.fingerprint
    with pytest.raises(Problem, match="of all stages, not of the last stage alone"):
        FeatureStore.open(tmp_path, expected=last.description)


def test_goes_on_where_it_was_stopped(tmp_path, backbone):
    some = pictures(6)

    class Stop(Exception):
        pass

    def stop(done, of):
        if done >= 4:
            raise Stop

    with pytest.raises(Stop):
        make_features(tmp_path, some, backbone, batch=2, progress=stop)
    assert FeatureStore.open(tmp_path).state.tolist() == [MADE] * 4 + [0] * 2
    seen = []
    store, _ = make_features(tmp_path, some, backbone, batch=2, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(2, 2)]
    fresh, _ = make_features(tmp_path / "fresh", some, backbone, batch=2)
    assert torch.equal(store[list(some)], fresh[list(some)])


def test_a_truncated_jpeg_is_named_and_left_out(tmp_path, backbone):
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "good.jpg")
    (tmp_path / "bad.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:300])
    paths = {name: tmp_path / name for name in ("bad.jpg", "good.jpg")}
    store, skipped = make_features(tmp_path / "f", paths, backbone)
    assert store.has("good.jpg")
    assert not store.has("bad.jpg")
    assert "bad.jpg is broken" in str(skipped)
    _, skipped = make_features(tmp_path / "f", paths, backbone)
    assert "bad.jpg" in str(skipped)


def test_another_backbone_is_refused(tmp_path, backbone):
    make_features(tmp_path, pictures(2), backbone)
    torch.manual_seed(1)
    other = make_backbone("small", size=32, widths=[4, 8], depths=[1, 1])
    difference = f"made by backbone, .*fingerprint {fingerprint(backbone)}, not {fingerprint(other)}"
    with pytest.raises(Problem, match=difference):
        FeatureStore.open(tmp_path, expected=FeatureDescription.of(other, "another"))
    with pytest.raises(Problem, match="Make them again"):
        make_features(tmp_path, pictures(2), other)


def test_the_first_difference_is_named(backbone):
    description = FeatureDescription.of(backbone, "mine")
    assert description.size == 32
    assert description.difference(replace(description, name="the same elsewhere")) is None
    assert description.difference(replace(description, size=None)) is None
    both = replace(description, size=64, weights="other")
    assert description.difference(both) == "they are of pictures of 32 x 32 pixels, not 64 x 64"
    assert description.difference(replace(both, size=None)).endswith("not other")
    assert (description == replace(description, stages=True), description == replace(description, name="x")) == (
        False,
        True,
    )


@pytest.mark.parametrize("stages", [False, True])
def test_a_store_from_before_there_were_descriptions(tmp_path, backbone, stages):
    """It had the backbone's name and a fingerprint with a mark for stages."""
    some = pictures(2)
    store, _ = make_features(tmp_path, some, backbone, name="mine", stages=stages)
    content = json.loads((tmp_path / "store.json").read_text())
    del content["features"]
    mark = "-stages" if stages else ""
    content |= {"backbone": "mine", "fingerprint": fingerprint(backbone) + mark}
    del content["paths"]
    (tmp_path / "store.json").write_text(json.dumps(content))
    (tmp_path / "origins.bin").unlink()
    old = FeatureStore.open(tmp_path, expected=store.description)
    assert (old.description, old.description.name) == (store.description, "mine")
    seen = []
    make_features(tmp_path, some, backbone, stages=stages, progress=lambda done, of: seen.append(done))
    assert not seen  # nothing is made again


def test_broken_stores(tmp_path, backbone):
    with pytest.raises(Problem, match="holds no features"):
        FeatureStore.open(tmp_path / "none")
    make_features(tmp_path, pictures(2), backbone)
    (tmp_path / "features.bin").write_bytes(b"short")
    with pytest.raises(Problem, match="does not have the"):
        FeatureStore.open(tmp_path)
    (tmp_path / "store.json").write_text(json.dumps({"names": []}))
    with pytest.raises(Problem, match="holds no features"):
        FeatureStore.open(tmp_path)
    with pytest.raises(Problem, match="no pictures"):
        make_features(tmp_path / "x", {}, backbone)


@pytest.fixture
def photographs(tmp_path):
    """Files of pictures by name, and a function that writes one in a colour."""
    from PIL import Image

    def write(name, colour, suffix="png"):
        Image.new("RGB", (32, 32), colour).save(tmp_path / "photos" / name, suffix)

    (tmp_path / "photos").mkdir()
    for name, colour in (("a", "red"), ("b", "green"), ("c", "blue")):
        write(name, colour)
    return {name: tmp_path / "photos" / name for name in "abc"}, write


def made_rows(*arguments, **options):
    """The names of the rows that a call makes."""
    from unittest import mock

    from regard.vqa import features

    rows = []

    def spy(store, part, *rest):
        rows.extend(store.names[row] for row, _ in part)
        return make(store, part, *rest)

    make = features.make_rows
    with mock.patch.object(features, "make_rows", spy):
        store, skipped = make_features(*arguments, **options)
    return store, skipped, rows


def test_a_store_grows_and_loses_no_row(tmp_path, backbone, photographs):
    paths, _ = photographs
    store, _, rows = made_rows(tmp_path / "f", {"b": paths["b"]}, backbone)
    assert rows == ["b"]
    before = store[["b"]]
    store, _, rows = made_rows(tmp_path / "f", {name: paths[name] for name in "ac"}, backbone)
    assert rows == ["a", "c"]
    assert store.names == ("b", "a", "c")
    assert store.paths == tuple(str(paths[name]) for name in "bac")
    assert torch.equal(store[["b"]], before)
    fresh, _ = make_features(tmp_path / "fresh", paths, backbone)
    assert torch.equal(store[list("abc")], fresh[list("abc")])
    assert store.contents(["a", "none"])[1] == ""
    assert len(set(store.contents(list("abc")))) == 3


def test_a_picture_that_changed_under_its_name_is_made_again(tmp_path, backbone, photographs):
    paths, write = photographs
    store, _ = make_features(tmp_path / "f", paths, backbone)
    before = store[list("abc")]
    assert made_rows(tmp_path / "f", paths, backbone)[2] == []
    write("b", "yellow")
    changed, _, rows = made_rows(tmp_path / "f", paths, backbone)
    assert rows == ["b"]
    assert (changed[list("abc")] == before).flatten(1).all(1).tolist() == [True, False, True]
    assert torch.equal(changed[["b"]], make_features(tmp_path / "fresh", paths, backbone)[0][["b"]])


def test_content_decides_if_only_the_time_or_the_path_is_another(tmp_path, backbone, photographs):
    paths, write = photographs
    make_features(tmp_path / "f", paths, backbone)
    os.utime(paths["a"], ns=(1, 1))
    store, _, rows = made_rows(tmp_path / "f", paths, backbone)
    assert rows == []
    assert store.origins[0].time == 1
    # The same size, another content: bitmaps.
    write("a", "red", "bmp")
    make_features(tmp_path / "f", paths, backbone)
    write("a", "yellow", "bmp")
    assert made_rows(tmp_path / "f", paths, backbone)[2] == ["a"]
    # The same names in another folder: one is another picture, of the same size and time.
    (tmp_path / "elsewhere").mkdir()
    elsewhere = {name: tmp_path / "elsewhere" / name for name in "abc"}
    for name in "abc":
        shutil.copy2(paths["b" if name == "b" else name], elsewhere[name])
    assert made_rows(tmp_path / "f", elsewhere, backbone)[2] == []
    status = elsewhere["a"].stat()
    content = bytearray(elsewhere["a"].read_bytes())
    content[-1] ^= 255
    elsewhere["a"].write_bytes(content)
    os.utime(elsewhere["a"], ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert made_rows(tmp_path / "f", paths, backbone)[2] == []  # now known to be at the first place
    assert made_rows(tmp_path / "f", elsewhere, backbone)[2] == ["a"]


def test_a_picture_that_was_repaired_is_tried_again(tmp_path, backbone, photographs):
    paths, write = photographs
    whole = paths["b"].read_bytes()
    paths["b"].write_bytes(whole[:40])
    paths["a"].unlink()
    store, skipped, _ = made_rows(tmp_path / "f", paths, backbone)
    assert "a is not a file" in str(skipped)
    assert "b" in str(skipped)
    assert store.state.tolist() == [2, 2, 1]
    _, skipped, rows = made_rows(tmp_path / "f", paths, backbone)
    assert (rows, "met before" in str(skipped)) == ([], True)
    paths["b"].write_bytes(whole)
    write("a", "red")
    store, skipped, rows = made_rows(tmp_path / "f", paths, backbone)
    assert rows == ["a", "b"]
    assert not skipped
    assert torch.equal(store[list("abc")], make_features(tmp_path / "fresh", paths, backbone)[0][list("abc")])
    paths["c"].unlink()  # its features are still right
    assert made_rows(tmp_path / "f", paths, backbone)[0].has("c")


def test_tensors_that_changed_are_made_again(tmp_path, backbone):
    some = pictures(3)
    make_features(tmp_path, some, backbone)
    assert made_rows(tmp_path, some, backbone)[2] == []
    some["picture 1"] = 255 - some["picture 1"]
    assert made_rows(tmp_path, some, backbone)[2] == ["picture 1"]


def test_an_older_store_is_taken_as_it_is_and_watched_from_then_on(tmp_path, backbone, photographs):
    paths, write = photographs
    make_features(tmp_path / "f", paths, backbone)
    (tmp_path / "f" / "origins.bin").unlink()
    content = json.loads((tmp_path / "f" / "store.json").read_text())
    del content["paths"]
    (tmp_path / "f" / "store.json").write_text(json.dumps(content))
    store, _, rows = made_rows(tmp_path / "f", paths, backbone)
    assert rows == []
    assert store.paths == tuple(map(str, paths.values()))
    write("c", "yellow")
    assert made_rows(tmp_path / "f", paths, backbone)[2] == ["c"]


def test_nothing_is_written_for_pictures_that_are_not_there(tmp_path, backbone):
    with pytest.raises(Problem, match=r"none of the 2 pictures is there, such as .*a\.png"):
        make_features(tmp_path / "f", {name: tmp_path / "typo" / name for name in ("a.png", "b.png")}, backbone)
    assert not (tmp_path / "f").exists()


def test_fresh_takes_the_place_of_other_features(tmp_path, backbone, photographs):
    paths, _ = photographs
    make_features(tmp_path / "f", paths, backbone, stages=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "f").iterdir()}
    with pytest.raises(Problem, match=r"of all stages, not of the last stage alone.*--fresh"):
        make_features(tmp_path / "f", {"a": paths["a"]}, backbone)
    assert {path.name: path.read_bytes() for path in (tmp_path / "f").iterdir()} == files
    store, _ = make_features(tmp_path / "f", {"a": paths["a"]}, backbone, fresh=True)
    assert (store.names, store.description.stages) == (("a",), False)
    assert store.features_file.stat().st_size == 2 * store.width


def test_the_end_of_a_file_of_features_is_missed_in_words(tmp_path, backbone):
    """Not by SIGBUS, which a memory map would answer."""
    store, _ = make_features(tmp_path, pictures(3), backbone)
    assert store[["picture 2"]].shape == (1, 16, 16, 8)
    os.truncate(store.features_file, 2 * store.width)
    assert store[["picture 0"]].shape == (1, 16, 16, 8)
    with pytest.raises(Problem, match="was cut short while it was read: row 2 is not there"):
        store[["picture 0", "picture 2"]]


def test_names_that_are_not_text(tmp_path, backbone, photographs):
    paths, _ = photographs
    odd = os.fsdecode(b"caf\xe9.png")
    renamed = paths["a"].rename(paths["a"].with_name(odd))
    store, _ = make_features(tmp_path / "f", {odd: renamed, "b": paths["b"]}, backbone)
    assert FeatureStore.open(tmp_path / "f").has(odd)
    assert store.paths[0] == str(renamed)


def test_untrained_weights_are_remembered(tmp_path, backbone):
    store, _ = make_features(tmp_path / "a", pictures(1), backbone, untrained=True)
    assert FeatureStore.open(tmp_path / "a").description.untrained
    assert store.description == make_features(tmp_path / "b", pictures(1), backbone)[0].description
    assert not FeatureStore.open(tmp_path / "b").description.untrained


def test_pictures_of_a_split(tmp_path, backbone):
    write_scenes(Scenes("val", 3, size=32), tmp_path)
    read = read_questions(tmp_path, "val")
    store, _ = make_features(tmp_path / "features", read.pictures, backbone)
    assert all(store.has(record.picture) for record in read.records)
    assert store.sample(2).shape == (2, 16, 16, 8)
