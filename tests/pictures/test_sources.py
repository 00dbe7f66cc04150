"""Folders, tars and arrays as lists of pictures; broken ones are passed over."""

import io
import json
import sys
import tarfile

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.pictures import Arrays, Files, Pictures, SavedDataset, Tars, as_pictures, open_pictures, square, take


def picture(path, value, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


def test_a_folder_tree_with_classes(tmp_path):
    for i, name in enumerate(["cat/a.png", "cat/deep/b.JPG", "dog/c.png", "dog/.hidden.png", "dog/readme.txt"]):
        if name.endswith("txt"):
            (tmp_path / name).write_text("no picture")
        else:
            picture(tmp_path / name, 50 * i)
    files = open_pictures(tmp_path)
    assert isinstance(files, Files)
    assert isinstance(files, Pictures)
    assert len(files) == 3
    assert files.classes == ["cat", "dog"]
    assert files.labels == [0, 0, 1]
    assert files[2].unique().tolist() == [100]


def test_a_folder_without_classes(tmp_path):
    picture(tmp_path / "a.png", 1)
    picture(tmp_path / "more" / "b.png", 2)
    assert Files(tmp_path).labels is None
    assert Files(tmp_path).classes == []


def test_folders_that_cannot_serve(tmp_path):
    with pytest.raises(Problem, match="no pictures"):
        open_pictures(tmp_path)
    with pytest.raises(Problem, match="does not exist"):
        open_pictures(tmp_path / "gone")
    (tmp_path / "a.txt").touch()
    with pytest.raises(Problem, match="one file"):
        open_pictures(tmp_path / "a.txt")


def shard(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def png(value):
    file = io.BytesIO()
    Image.new("L", (3, 3), value).save(file, "PNG")
    return file.getvalue()


def test_tars_with_labels(tmp_path):
    shard(tmp_path / "0.tar", [("a/1.png", png(10)), ("a/1.cls", b"12"), ("a/2.png", png(20)), ("a/2.cls", b"3\n")])
    shard(tmp_path / "1.tar", [("a/1.left.png", png(30)), ("a/1.cls", b"3"), ("a/1.txt", b"a caption")])
    tars = open_pictures(tmp_path)
    assert isinstance(tars, Tars)
    assert [int(tars[i].max()) for i in range(3)] == [10, 20, 30]
    assert tars.classes == ["3", "12"]
    assert tars.labels == [1, 0, 0]
    assert tars.name(2).endswith("1.tar:a/1.left.png")
    assert open_pictures(tmp_path / "1.tar").labels == [0]


def test_tars_with_some_labels_have_none(tmp_path):
    shard(tmp_path / "0.tar", [("1.png", png(10)), ("1.cls", b"0"), ("2.png", png(10))])
    assert Tars([tmp_path / "0.tar"]).labels is None


def test_tars_that_cannot_serve(tmp_path):
    (tmp_path / "no.tar").write_bytes(b"x" * 2000)
    with pytest.raises(Problem, match=r"no\.tar is not a plain tar"):
        open_pictures(tmp_path / "no.tar")
    shard(tmp_path / "none.tar", [("a.txt", b"text")])
    with pytest.raises(Problem, match="no pictures"):
        open_pictures(tmp_path / "none.tar")
    shard(tmp_path / "bad.tar", [("a.png", b"text")])
    with pytest.raises(Problem, match=r"bad\.tar:a\.png"):
        open_pictures(tmp_path / "bad.tar")[0]


@pytest.mark.parametrize("shape", [(5, 3, 8, 6), (5, 8, 6, 3), (5, 8, 6), (5, 1, 8, 6), (5, 8, 6, 1)])
def test_arrays_in_every_layout(shape):
    arrays = as_pictures(np.zeros(shape, np.uint8))
    assert arrays[4].shape == (3, 8, 6)
    assert torch.equal(as_pictures(torch.full(shape, 0.5))[0], torch.full((3, 8, 6), 128, dtype=torch.uint8))


def test_arrays_that_cannot_serve():
    with pytest.raises(Problem, match="shape"):
        Arrays(torch.zeros(4, 4))
    with pytest.raises(Problem, match="uint8"):
        Arrays(torch.full((2, 3, 4, 4), 7.0))
    with pytest.raises(Problem, match="uint8"):
        Arrays(torch.full((2, 3, 4, 4), float("nan")))
    with pytest.raises(Problem, match="1 labels for 2"):
        Arrays(torch.zeros(2, 3, 4, 4), [1])


def test_array_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (4, 5, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "a.npz", x=pixels, y=[0, 1, 2, 1])
    assert torch.equal(open_pictures(tmp_path / "a.npy")[1], torch.from_numpy(pixels[1]).permute(2, 0, 1))
    assert open_pictures(tmp_path / "a.npz").labels == [0, 1, 2, 1]
    np.savez(tmp_path / "two.npz", a=pixels, b=pixels)
    with pytest.raises(Problem, match="it holds a, b"):
        open_pictures(tmp_path / "two.npz")
    (tmp_path / "bad.npy").write_bytes(b"no")
    with pytest.raises(Problem, match=r"bad\.npy"):
        open_pictures(tmp_path / "bad.npy")


def test_a_broken_picture_gives_way_to_the_next(tmp_path):
    for i in range(4):
        picture(tmp_path / f"{i}.png", 10 * i)
    (tmp_path / "1.png").write_text("broken")
    (tmp_path / "3.png").write_text("broken")
    files = Files(tmp_path)
    assert take(files, 0).broken == ()
    assert take(files, 1).index == 2
    assert [name for name, _ in take(files, 1).broken] == [str(tmp_path / "1.png")]
    assert take(files, 3).index == 0  # round the end
    for i in (0, 2):
        (tmp_path / f"{i}.png").write_text("broken")
    with pytest.raises(Problem, match="4 pictures in a row"):
        take(files, 0)


def test_square_averages():
    stripes = torch.tensor([0, 200], dtype=torch.uint8).repeat(3, 8, 8)
    assert square(stripes, 16) is stripes or torch.equal(square(stripes, 16)[:, :8], stripes)
    assert set(square(stripes, 4)[..., 1:-1].unique().tolist()) <= {100}


def saved(folder, columns, types=None, shards=1, features=None):
    """Write a table as `datasets.Dataset.save_to_disk` does: streams of record batches, and what is in them as JSON."""
    folder.mkdir(parents=True)
    table = pyarrow.table(columns, schema=pyarrow.schema(types) if types else None)
    size = -(-len(table) // shards)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        part = table.slice(i * size, size)
        with pyarrow.ipc.new_stream(str(folder / name), part.schema) as writer:
            writer.write_table(part, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return folder


IMAGE = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})


def test_a_saved_data_set(tmp_path):
    picture(tmp_path / "outside.png", 50)
    rows = [{"bytes": png(10 * i), "path": None} for i in range(5)]
    rows[3] = {"bytes": None, "path": str(tmp_path / "outside.png")}
    saved(
        tmp_path / "d" / "train",
        {"id": [7, 7, 7, 7, 7], "image": rows, "fine_label": [0, 1, 2, 1, 0]},
        {"id": pyarrow.int64(), "image": IMAGE, "fine_label": pyarrow.int64()},
        shards=2,
        features={"fine_label": {"names": ["cat", "dog", "bird"], "_type": "ClassLabel"}},
    )
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["test", "train"]}))
    for path in (tmp_path / "d", tmp_path / "d" / "train"):  # all splits, of which "train" is taken, or one
        source = open_pictures(path)
        assert isinstance(source, SavedDataset)
        assert len(source) == 5
        assert [int(source[i].max()) for i in range(5)] == [0, 10, 20, 50, 40]
        assert source[0].shape == (3, 3, 3)
        assert source.labels == [0, 1, 2, 1, 0]
        assert source.classes == ["cat", "dog", "bird"]
        assert source.name(4).endswith("row 4")


def test_a_saved_data_set_without_labels_and_with_a_broken_row(tmp_path):
    rows = [{"bytes": png(10), "path": None}, {"bytes": b"text", "path": None}]
    source = open_pictures(saved(tmp_path / "d", {"image": rows}, {"image": IMAGE}))
    assert (source.labels, source.classes) == (None, [])
    taken = take(source, 1)
    assert taken.index == 0
    assert [name for name, _ in taken.broken] == [source.name(1)]


def test_saved_data_sets_that_cannot_serve(tmp_path):
    with pytest.raises(Problem, match="no column of pictures, only text, label"):
        open_pictures(saved(tmp_path / "text", {"text": ["a"], "label": [1]}))
    whole = saved(tmp_path / "cut", {"image": [{"bytes": png(1), "path": None}]}, {"image": IMAGE})
    (file,) = whole.glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(Problem, match="not a whole saved data set"):
        open_pictures(whole)
    file.unlink()
    with pytest.raises(Problem, match="not a whole saved data set"):
        open_pictures(whole)
    (whole / "state.json").write_text(json.dumps({"_data_files": []}))
    with pytest.raises(Problem, match="not a whole saved data set"):
        open_pictures(whole)


def test_a_saved_data_set_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": []}))
    with pytest.raises(Problem, match=r"pip install .*pyarrow"):
        SavedDataset(tmp_path)
