"""Features, evaluations and comparisons by two processes: what one process makes."""

import json
import os
import shutil
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from regard._problem import Problem
from regard._ranks import Ranks
from regard.backbones import make_backbone, save_backbone
from regard.pictures import Arrays
from regard.scenes import Scenes, write_scenes
from regard.swav import evaluate_backbone
from regard.training import Running
from regard.training._together import Together, together
from regard.vqa import shared_jobs
from regard.vqa.evaluate_run import evaluate_run
from regard.vqa.feature_store import MADE, FeatureStore
from regard.vqa.features import make_features
from regard.vqa.folder import ComparisonFolder
from regard.vqa.jobs import Job
from regard.vqa.manifest import Manifest
from regard.vqa.read import read_questions
from regard.vqa.settings import small, small_training
from regard.vqa.shared_jobs import JobQueue, share_jobs
from regard.vqa.train import train

TINY = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}


def backbone():
    torch.manual_seed(0)
    return make_backbone("small", size=32, widths=[8, 16], depths=[1, 1], stem_stride=2)


def pictures_of(folder, *splits):
    return {k: v for split in splits for k, v in read_questions(folder / "scenes", split).pictures.items()}


def labelled():
    generator = torch.Generator().manual_seed(3)
    return Arrays(torch.randint(0, 256, (60, 3, 32, 32), dtype=torch.uint8, generator=generator), [0, 1, 2] * 20)


def measured(folder, out, group=None):
    """All that is compared: tables of answers with hidden cells, and those of a backbone."""
    said = evaluate_run(
        folder / "run", folder / "scenes", ["discrete-sparsemax"], out, faithfulness=3, hide="features", group=group
    )
    return [said, evaluate_backbone(backbone(), labelled(), group=group).as_dict()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    for split, count in (("train", 12), ("test", 9)):
        write_scenes(Scenes(split, count, size=32), folder / "scenes")
    broken = next(iter(pictures_of(folder, "train").values()))
    broken.write_bytes(b"no picture")
    store, _ = make_features(folder / "one", pictures_of(folder, "train", "test"), backbone(), name="small", batch=1)
    records = read_questions(folder / "scenes", "train")
    settings = small_training(model=small(**TINY), epochs=1, above=0)
    train(folder / "run", records, store, settings, running=Running(progress=False))
    save_backbone(backbone(), folder / "run" / "backbone")
    return folder


def worker(rank, folder):
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)  # so that the second leaves the lock to the first
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = Together(rank, 2)
    make_features(folder / "two", pictures_of(folder, "train", "test"), backbone(), name="small", batch=1, group=group)
    # A store that one process began is completed by two, without a copy of its rows.
    make_features(
        folder / "begun", pictures_of(folder, "train", "test"), backbone(), name="small", batch=1, group=group
    )
    said = measured(folder, folder / "numbers-two", group)
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_are_one(place, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = measured(place, place / "numbers-one")
        make_features(place / "begun", pictures_of(place, "train"), backbone(), batch=1)
        before = (place / "begun" / "features.bin").read_bytes()
        mp.spawn(worker, (place,), nprocs=2)
    finally:
        torch.set_num_threads(threads)
    expected = FeatureStore.open(place / "one")
    for name, count in (("two", 2), ("begun", 3)):
        store = FeatureStore.open(place / name)
        assert len(store.parts) == count
        assert (store.names, store.paths) == (expected.names, expected.paths)
        assert store.state.tolist() == expected.state.tolist()
        assert store.contents(store.names) == expected.contents(expected.names)
        made = [name for name, state in zip(store.names, store.state, strict=True) if state == MADE][::-1]
        assert len(made) == len(store.names) - 1  # one is broken
        assert torch.equal(store[made], expected[made])
        assert torch.equal(store.sample(5), expected.sample(5))
    assert (place / "begun" / "features.bin").read_bytes() == before
    for rank in (0, 1):
        assert json.loads((place / f"said-{rank}.json").read_text()) == json.loads(json.dumps(one))
    for file in (place / "numbers-one").iterdir():
        assert file.read_bytes() == (place / "numbers-two" / file.name).read_bytes()


def test_one_process_completes_what_two_began(place, tmp_path):
    """One part is there, of the other nothing: the same parts are filled, in the same order."""
    pictures = pictures_of(place, "train", "test")
    Manifest(tmp_path / "store").with_names(pictures, 2).write()
    begun = Manifest.read(tmp_path / "store").parts[1]
    make_features(tmp_path / "alone", {name: pictures[name] for name in begun[1]}, backbone())
    shutil.copytree(tmp_path / "alone", tmp_path / "store" / begun[0])
    with pytest.raises(Problem, match="holds no features"):
        FeatureStore.open(tmp_path / "store")
    done = []
    store, skipped = make_features(
        tmp_path / "store", pictures, backbone(), progress=lambda n, total: done.append((n, total))
    )
    assert store.names == FeatureStore.open(place / "one").names
    assert done[-1] == (len(store.parts[0].names),) * 2  # of the other part nothing was made again
    assert len(skipped.notes) == 1
    again, _ = make_features(tmp_path / "store", pictures, backbone(), fresh=True)
    assert again.parts == ()  # one process makes one store
    assert np.array_equal(again.state, FeatureStore.open(place / "one").state)


def job(folder, number):
    settings = small_training(model=small(**TINY), epochs=1, above=0)
    return Job(ComparisonFolder(folder).run("discrete-softmax", number), folder, folder, settings)


def test_jobs_are_shared_and_a_lost_one_is_taken_over(tmp_path, monkeypatch):
    """Two threads in place of processes, and trainings that only sleep."""
    jobs, key, ran = [job(tmp_path, number) for number in range(6)], {"test": "test"}, []
    together_now = threading.Barrier(2)

    def run(mine, then, workers, progress):
        if len(ran) < 2:
            together_now.wait(30)  # both have one before either has ended
        ran.extend(one.out.path.name for one in mine)
        return [then(one) for one in mine]

    monkeypatch.setattr(shared_jobs, "run_jobs", run)
    monkeypatch.setattr(shared_jobs, "_LOOK", 0.05)
    lost = JobQueue(tmp_path / "queue", key)
    lost.leases.lasts = 1.0
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "discrete-softmax-3.0").write_text(json.dumps({"stamp": "of a process that is gone"}))
    results = {}

    def work(rank):
        queue = JobQueue(tmp_path / "queue", key)
        queue.leases.lasts = 1.0
        results[rank] = share_jobs(jobs, lambda one: {"name": one.out.path.name}, queue, Ranks(rank, 2))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = [{"name": f"discrete-softmax-{number}"} for number in range(6)]
    assert results == {0: expected, 1: expected}
    assert sorted(ran) == [one["name"] for one in expected]  # each once
    assert ran[-1] == "discrete-softmax-3"
    assert JobQueue(tmp_path / "queue", {"test": "another"}).result(jobs[0]) is None
    assert lost.result(jobs[0]) == expected[0]


def test_a_process_alone_needs_no_group():
    with together() as group:
        assert (group.rank, group.size, group.gather(3), group.first_says("a")) == (0, 1, [3], "a")
