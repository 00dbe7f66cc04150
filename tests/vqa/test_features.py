"""The feature store: half precision, memory-mapped, resumable, with the backbone's fingerprint."""

import json
import pickle
from dataclasses import replace

import pytest
import torch

from regard._problem import Problem
from regard.backbones import fingerprint, make_backbone
from regard.scenes import Scenes, write_scenes
from regard.vqa.description import FeatureDescription
from regard.vqa.features import MADE, FeatureStore, make_features
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
    (tmp_path / "store.json").write_text(json.dumps(content))
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


def test_pictures_of_a_split(tmp_path, backbone):
    write_scenes(Scenes("val", 3, size=32), tmp_path)
    read = read_questions(tmp_path, "val")
    store, _ = make_features(tmp_path / "features", read.pictures, backbone)
    assert all(store.has(record.picture) for record in read.records)
    assert store.sample(2).shape == (2, 16, 16, 8)
