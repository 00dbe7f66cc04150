"""Shards on a disk and behind URLs: the same pictures, a bounded cache, and faults that are survived and named."""

import gzip
import io
import multiprocessing
import os
import pickle
import tarfile
import time
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from shard_server import s3_environment, served

from regard._problem import Problem, Unreachable
from regard.pictures import CacheSettings, Tars, open_pictures, take
from regard.pictures._digest import content_parts, described
from regard.pictures._shard_cache import ShardCache
from regard.pictures._shard_index import ShardIndex, index_tar

SHARDS, EACH = 4, 5


def write_shards(folder, shards=SHARDS, each=EACH, labels=True):
    """Tars of small random pictures."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for s in range(shards):
        with tarfile.open(folder / f"{s:03d}.tar", "w") as tar:
            for i in range(each):
                file = io.BytesIO()
                Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
                add(tar, f"{s}-{i}.png", file.getvalue())
                if labels:
                    add(tar, f"{s}-{i}.cls", f"{(s + i) % 3}".encode())


def add(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def disk(tmp_path):
    write_shards(tmp_path / "b" / "set")
    return open_pictures(tmp_path / "b" / "set", cache=CacheSettings(tmp_path / "disk"))


@pytest.fixture
def server(disk, tmp_path, monkeypatch):
    """The folder with the shards in b/set, as a server."""
    pytest.importorskip("s3fs")
    with served(tmp_path) as server:
        for name, value in s3_environment(server).items():
            monkeypatch.setenv(name, value)
        server.web = f"{server.url}/b/set/{{000..003}}.tar"
        yield server


def same(one, other):
    assert len(one) == len(other)
    assert all((one[i] == other[i]).all() for i in range(len(one)))
    assert (one.labels, one.classes) == (other.labels, other.classes)
    assert list(content_parts(one)) == list(content_parts(other))


NAMES = st.lists(st.sampled_from(["a", "b.c", "d/e", "f" * 120, "ü"]), unique=True)


@given(NAMES, st.lists(st.binary(max_size=1500), min_size=5, max_size=5), st.booleans())
def test_the_index_is_what_tarfile_finds(names, contents, labelled):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in zip(names, contents, strict=False):
            add(tar, f"{name}.png", content)
            add(tar, f"{name}.txt", b"a caption")
            if labelled:
                add(tar, f"{name.partition('.')[0]}.cls", name.encode())
    index = index_tar(io.BytesIO(made.getvalue()), "0.tar")
    with tarfile.open(fileobj=io.BytesIO(made.getvalue())) as tar:
        members = [member for member in tar if member.name.endswith(".png")]
        expected = [(m.offset_data // 512, m.size, zlib.crc32(tar.extractfile(m).read())) for m in members]
    assert [tuple(record)[:3] for record in index.records.tolist()] == expected
    assert [index.header.classes[label] for *_, label in index.records.tolist() if labelled] == (
        names if labelled else []
    )
    again = ShardIndex.from_bytes(index.to_bytes())
    assert again.header == index.header
    assert (again.records == index.records).all()
    assert len(index.to_bytes()) - len(index.header.to_bytes()) == 16 * len(names)


def test_a_damaged_index_is_refused(disk):
    content = disk._index(0).to_bytes()
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b"no index"):
        with pytest.raises(ValueError, match=r"."):
            ShardIndex.from_bytes(damaged)


def test_servers_have_what_the_disk_has(disk, server, tmp_path):
    for number, place in enumerate([server.web, "s3://b/set", "s3://b/set/{000..003}.tar"]):
        source = open_pictures(place, cache=CacheSettings(tmp_path / f"cache{number}"))
        same(source, disk)
        assert source.name(7).endswith("001.tar:1-2.png")
    small = pickle.loads(pickle.dumps(source))  # as a process that loads data gets it
    assert (small[3] == disk[3]).all()


def test_any_file_system_of_fsspec(disk, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in (tmp_path / "b" / "set").glob("*.tar"):
        memory.pipe_file(f"/set/{path.name}", path.read_bytes())
    try:
        source = Tars.at("memory://set", cache=CacheSettings(tmp_path / "m"))
        same(source, disk)
        assert source.write_index() == "memory://set/regard-index"
        same(Tars.at("memory://set", cache=CacheSettings(tmp_path / "none")), disk)
        assert not (tmp_path / "none").exists()
    finally:
        memory.rm("/set", recursive=True)
    with pytest.raises(Problem, match="of no kind that can be read"):
        Tars.at("nothing://here")


def test_with_an_index_no_shard_is_read_to_begin(disk, server, tmp_path):
    disk.write_index()
    same(open_pictures(tmp_path / "b" / "set", cache=CacheSettings(tmp_path / "unused")), disk)
    assert not (tmp_path / "unused").exists()
    source = open_pictures(f"{server.url}/b/set", cache=CacheSettings(tmp_path / "unused"))
    assert [path for _, path, _ in server.asked if path.endswith(".tar")] == []
    same(source, disk)
    ranges = {wanted for _, path, wanted in server.asked if path.endswith(".tar")}
    assert len(ranges) == EACH  # each picture by its bytes alone
    assert None not in ranges


def test_an_index_of_other_shards_is_refused(disk, tmp_path):
    disk.write_index()
    folder = tmp_path / "b" / "set"
    (folder / "003.tar").rename(folder / "004.tar")
    with pytest.raises(Problem, match=r"other tars than .*run regard index again"):
        open_pictures(folder)
    (folder / "regard-index" / "index.json").write_text("{}")
    with pytest.raises(Problem, match="is not an index"):
        open_pictures(folder)


def test_read_ahead_fills_the_cache_and_nothing_is_asked_for_then(disk, server, tmp_path):
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache"))
    source.ahead([2, 0])
    assert source._ahead.wait(20)
    server.asked.clear()
    for i in (0, 3, 2 * EACH, 3 * EACH - 1):
        assert (source[i] == disk[i]).all()
    assert server.asked == []
    source[EACH]
    assert len(server.asked) == 1
    # What the disk has lost is copied again.
    cached = source._cache.path(source._key(0))
    cached.write_bytes(bytes(cached.stat().st_size))
    assert (source[0] == disk[0]).all()
    assert not cached.exists()


def test_a_server_without_ranges(disk, server, tmp_path):
    server.ranges = False
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache"))
    server.asked.clear()
    same(source, disk)
    assert 0 < sum(path.endswith(".tar") for _, path, _ in server.asked) <= SHARDS + 1


def test_the_cache_is_bounded(tmp_path):
    cache = ShardCache(tmp_path, limit=100)

    def write(path):
        assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 100  # reserved before it is written
        path.write_bytes(bytes(40))

    assert cache.bring("a", 40, write)
    assert cache.bring("b", 40, write)
    os.utime(cache.path("a"), (1, 1))
    assert cache.use("a")  # used now: the other one is older
    os.utime(cache.path("b"), (2, 2))
    assert cache.bring("c", 40, write)
    assert [cache.path(name).exists() for name in "abc"] == [True, False, True]
    assert not cache.bring("d", 40, write, keep=["a", "c"])
    assert not cache.bring("e", 101, write)
    with pytest.raises(ZeroDivisionError):
        cache.bring("f", 40, lambda path: 1 / 0)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def hold(folder, ready, go):
    def copy(path):
        ready.set()
        go.wait(20)
        path.write_bytes(b"1")

    ShardCache(folder, 10).bring("a", 1, copy)


def test_two_processes_do_not_copy_the_same_shard(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, go))
    other.start()
    assert ready.wait(20)
    cache = ShardCache(tmp_path, 10)
    assert not cache.bring("a", 1, lambda path: path.write_bytes(b"2"))
    go.set()
    other.join()
    assert cache.bring("a", 1, lambda path: path.write_bytes(b"2"))
    assert cache.path("a").read_bytes() == b"1"


@pytest.mark.parametrize("fault", ["close", "short", 503])
def test_a_server_that_fails_now_and_then(disk, server, tmp_path, fault):
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache", limit=0))
    assert source.faults() == []
    left = [2]

    def fail(path):
        left[0] -= 1
        return fault if left[0] >= 0 else None

    server.fault = fail
    assert (source[7] == disk[7]).all()
    names = [name for name, _ in source.faults()]
    assert len(names) == 2 or fault == "close"  # a connection that was closed is opened again by aiohttp itself, once
    assert set(names) == {f"{server.url}/b/set/001.tar"}
    assert source.faults() == []


def test_a_server_that_never_answers_ends_a_run_in_one_line(disk, server, tmp_path):
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache", limit=0), patience=0.3)
    source[0]
    server.fault = lambda path: 503
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"001\.tar could not be read for 0 s .*rerun to resume\.$") as end:
        take(source, EACH)  # not passed over: which pictures are seen does not depend on a network
    assert time.monotonic() - begun < 10
    assert "\n" not in str(end.value)
    # As torch raises it again, in the process that trains.
    text = f"Caught Unreachable in DataLoader worker process 0.\nTraceback\nregard._problem.Unreachable: {end.value}\n"
    assert str(Unreachable(text)) == str(end.value)
    server.fault = lambda path: 403
    with pytest.raises(Unreachable, match="no access to"):
        source[EACH]


def test_a_shard_that_is_gone_gives_way_to_the_next(disk, server, tmp_path):
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache", limit=0))
    (tmp_path / "b" / "set" / "001.tar").unlink()
    for place in (disk, source):
        taken = take(place, EACH + 3)
        assert taken.index == 2 * EACH + 3
        assert [name for name, _ in taken.broken] == [place.store.at("001.tar")]
    assert source.faults() == []


def test_a_changed_picture_is_broken(disk, server, tmp_path):
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache"))
    path = tmp_path / "b" / "set" / "001.tar"
    content = bytearray(path.read_bytes())
    content[int(source._index(1).records["block"][2]) * 512 + 40] ^= 1
    path.write_bytes(content)
    for place in (disk, source):
        taken = take(place, EACH + 2)
        assert taken.index == EACH + 3
        ((name, why),) = taken.broken
        assert name.endswith("001.tar:1-2.png")
        assert "is not what it was" in why


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with served(tmp_path) as server, pytest.raises(Problem, match=r"0\.tar does not exist"):
        open_pictures(f"{server.url}/0.tar", cache=CacheSettings(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Problem, match="holds no tars"):
        Tars.at(tmp_path / "empty")

    def refuse(*_, **__):
        raise ImportError("Install s3fs")

    monkeypatch.setattr("fsspec.filesystem", refuse)
    with pytest.raises(Problem, match=r"needs a package that is not here.*install.* s3fs"):
        open_pictures("s3://b/set")


def break_shards(folder):
    """Of five shards one is whole; the others are cut, overwritten at a header, empty, and compressed."""
    paths = sorted(folder.glob("*.tar"))
    contents = [bytearray(path.read_bytes()) for path in paths]
    with tarfile.open(paths[1]) as tar:
        members = tar.getmembers()
    third = members[4].offset  # a picture and a label each
    contents[0] = contents[0][: third + 600]  # inside the third picture
    contents[1][third : third + 512] = bytes(range(256)) * 2
    contents[2] = b""
    contents[3] = gzip.compress(contents[3])
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)


@pytest.mark.parametrize("place", ["disk", "web"])
def test_what_is_whole_of_broken_shards_is_used(tmp_path, place):
    write_shards(tmp_path / "set", shards=5)
    whole = open_pictures(tmp_path / "set", cache=CacheSettings(tmp_path / "whole"))
    expected = [whole[i] for i in (0, 1, EACH, EACH + 1, *range(4 * EACH, 5 * EACH))]
    break_shards(tmp_path / "set")
    said = []
    with served(tmp_path) as server:
        folder = tmp_path / "set" if place == "disk" else f"{server.url}/set/{{000..004}}.tar"
        source = open_pictures(folder, cache=CacheSettings(tmp_path / "cache"), say=said.append)
        assert source.counts == [2, 2, 0, 0, EACH]
        assert all((source[i] == picture).all() for i, picture in enumerate(expected))
        assert len(source.labels) == len(expected)
    assert [name.rpartition("/")[2] for name in source.broken()] == ["000.tar", "001.tar", "002.tar", "003.tar"]
    assert "unexpected end of data" in next(iter(source.broken().values()))
    assert said[-1].startswith("4 of 5 shards are broken, and used as far as they are whole: ")
    if place == "disk":  # the index beside the shards says it too
        source.write_index()
        assert open_pictures(folder, cache=CacheSettings(tmp_path / "unused")).broken() == source.broken()
        for path in sorted(folder.glob("*.tar"))[:2] + sorted(folder.glob("*.tar"))[4:]:
            path.unlink()
        (folder / "regard-index" / "index.json").unlink()
        with pytest.raises(Problem, match=r"002\.tar is not a plain tar \(empty file\)\. Unpack"):
            open_pictures(folder, cache=CacheSettings(tmp_path / "cache"))


def index_slowly(url, cache, begun):
    begun.wait(20)
    assert len(open_pictures(url, cache=CacheSettings(cache))) == SHARDS * EACH


def test_processes_share_the_first_pass(disk, server, tmp_path):
    """Each shard is read once on a machine, however many processes begin there."""
    context = multiprocessing.get_context("fork")
    server.fault = lambda path: time.sleep(0.2)
    begun = context.Barrier(3)
    others = [context.Process(target=index_slowly, args=(server.web, tmp_path / "cache", begun)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
        assert other.exitcode == 0
    read = [path for command, path, _ in server.asked if command == "GET"]
    assert sorted(read) == [f"/b/set/{i:03d}.tar" for i in range(SHARDS)]
    assert not list((tmp_path / "cache").rglob("*.lock"))


def test_a_server_that_fails_when_it_is_asked_for_sizes(disk, server, tmp_path):
    """fsspec says that a file does not exist, whatever the server says."""
    left = [1]

    def fail(path):
        left[0] -= 1
        return 503 if left[0] >= 0 else None

    server.fault = server.head_fault = fail
    source = open_pictures(server.web, cache=CacheSettings(tmp_path / "cache"))
    assert len(source) == len(disk)
    server.fault = server.head_fault = lambda path: 401
    with pytest.raises(Unreachable, match=r"no access to .*401"):
        open_pictures(server.web, cache=CacheSettings(tmp_path / "other"))


def test_folders_that_are_not_there(server, tmp_path):
    for place in ("s3://b/nothing", "s3://none/set", f"{server.url}/b/nothing", f"file://{tmp_path}/nothing"):
        with pytest.raises(Problem, match=rf"^{place} (is no folder that can be listed|holds no tars)\."):
            open_pictures(place, cache=CacheSettings(tmp_path / "cache"))


def test_no_message_has_the_password_of_a_url(disk, server, tmp_path):
    web = server.web.replace("://", "://me:secret@")
    source = open_pictures(web, cache=CacheSettings(tmp_path / "cache"))
    assert (source[7] == disk[7]).all()
    assert described(source).startswith(f"{SHARDS * EACH} pictures of {server.url.replace('://', '://me@')}/b/set/000")
    source.store.patience = 0.1
    server.fault = lambda path: 503
    with pytest.raises(Unreachable, match="://me@") as end:
        source[EACH]
    assert "secret" not in f"{end.value} {source.name(0)} {source.faults()}"


def test_a_cache_that_cannot_be_written_is_named(disk, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Problem, match=r"cannot be kept in .*file/index \(.*\)\. .*--cache, or REGARD_CACHE$"):
        open_pictures(tmp_path / "b" / "set", cache=CacheSettings(tmp_path / "file"))
