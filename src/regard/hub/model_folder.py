"""The folder of a model: its files, their checks, download from the Hub and upload to it.

Nothing in it is code and nothing is unpickled. huggingface_hub and safetensors are imported on first use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard._files import replacing
from regard._install import install_extra, update_regard
from regard._problem import Problem
from regard.hub.card import Card

FORMAT = 1  # version of config.json; a later one is an error
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
_PATTERNS = ["*.json", "*.safetensors", CARD]  # files that are downloaded and uploaded


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a model: the names of its files, the version of its config, and the checks.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = ModelFolder(Path(folder))
    ...     place.write({"kind": "mine", "width": 3}, nn.Linear(3, 3).state_dict())
    ...     place.settings("mine")
    {'width': 3}
    """

    path: Path

    @property
    def name(self) -> str:
        """The last part of its path, which is what a card calls the model."""
        return self.path.resolve().name

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.path / WEIGHTS

    @classmethod
    def find(
        cls,
        source: Path | str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> ModelFolder:
        """A local folder, or else the download of a repository on the Hub. Arguments as in `from_pretrained`."""
        path = Path(source)
        if path.is_dir():
            return cls(path)
        if path.exists() or path.is_absolute() or str(source).startswith("."):
            raise Problem(f"{source} is not a folder with a model. Check the path.")
        try:
            from huggingface_hub import snapshot_download
        except ImportError as error:
            raise Problem(f"{source} is no folder, and the Hub needs a package: {install_extra('hf')}") from error
        options: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
        try:
            path = Path(
                snapshot_download(str(source), allow_patterns=_PATTERNS, local_files_only=local_files_only, **options)
            )
        except (OSError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            remedy = "Check the name and the revision; a private one needs a token."
            raise Problem(f"{source} is no folder, and the Hub did not give it ({reason}) {remedy}") from error
        return cls(path)

    def write(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Write weights and config, each to a temporary file that then replaces the old one."""
        from safetensors.torch import save as as_bytes

        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / WEIGHTS) as temporary:
            # Copies: safetensors does not store tensors that share memory.
            copies = {k: v.detach().cpu().clone().contiguous() for k, v in weights.items()}
            temporary.write_bytes(as_bytes(copies, {"format": "pt"}))
        with replacing(self.path / CONFIG) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT, **config}, indent=2) + "\n")

    def write_card(self, card: Card) -> None:
        """Write README.md."""
        with replacing(self.path / CARD) as temporary:
            temporary.write_text(str(card), encoding="utf-8")

    def config(self) -> dict[str, Any]:
        """All of config.json."""
        try:
            config = json.loads((self.path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Problem(f"{self.path} has no readable {CONFIG} ({error}). Name the folder of a model.") from error
        if not isinstance(config, dict):
            raise Problem(f"{self.path / CONFIG} is not a config. Name the folder of a model.")
        return config

    def settings(self, kind: str) -> dict[str, Any]:
        """The config of a model of this kind, without kind and format."""
        config = self.config()
        if config.get("kind") != kind:
            stored = config.get("kind", "model of another library")
            raise Problem(f"{self.path} holds a {stored}, not a {kind}. Load it with the class of its kind.")
        check_format(config, self.path / CONFIG)
        return {key: value for key, value in config.items() if key not in ("kind", "format")}

    @contextmanager
    def describing(self, what: str) -> Iterator[None]:
        """Turn errors while something is built from the config into a `Problem` that names the config."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise Problem(f"{self.path / CONFIG} does not describe a {what}: {reason}") from error

    def refuse(self, unknown: Set[str]) -> None:
        """A `Problem` if there are unknown keys."""
        if unknown:
            names = ", ".join(sorted(unknown))
            raise Problem(f"{self.path / CONFIG} has keys that this regard does not know: {names}. Take them out.")

    def fill(self, module: nn.Module) -> None:
        """Load the weights into a module; names and shapes must be the same."""
        path = self.path / WEIGHTS
        weights = open_safetensors(path)
        check_weights(path, weights, module.state_dict())
        module.load_state_dict(weights)


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The weights in a file of safetensors; a `Problem` if it is missing or broken."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise Problem(f"{path} is missing. Save the model again.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise Problem(f"{path} is broken ({error}). Take another copy, or save the model again.") from error


def check_weights(
    path: Path, weights: Mapping[str, Tensor], needed: Mapping[str, Tensor], remedy: str = "Name the right one."
) -> None:
    """A `Problem` unless the weights of a file have the names and shapes of the needed ones.

    `path`: the file, for the message.
    `weights`: what is in it.
    `needed`: what the model has.
    `remedy`: the last sentence of the message.
    """
    for name in sorted(needed.keys() | weights.keys()):
        shape, expected = (tuple(of[name].shape) if name in of else "nothing" for of in (weights, needed))
        if shape != expected:
            raise Problem(f"{path} is of another model: {name} has {shape}, not {expected}. {remedy}")


def check_format(config: Mapping[str, Any], path: Path) -> None:
    """A `Problem` if a later regard wrote this config; without a format it is version 1."""
    written = config.get("format", FORMAT)
    if not isinstance(written, int) or isinstance(written, bool) or written < 1:
        raise Problem(f"{path}: format is {written!r}, not a number from 1 to {FORMAT}. Save the model again.")
    if written > FORMAT:
        raise Problem(
            f"{path} is of format {written}, and this regard reads up to {FORMAT}. Update it: {update_regard()}"
        )


def upload(
    folder: Path, repo_id: str, private: bool | None, token: str | bool | None, branch: str | None, message: str
) -> str:
    """Upload a folder to a repository of models on the Hub, and return the URL of the commit.

    `folder`: with the files of a model.
    `repo_id`, `private`, `token`, `branch`: as in `Pretrained.push_to_hub`.
    `message`: of the commit.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise Problem(f"{repo_id}: the Hub needs a package: {install_extra('hf')}") from error
    api = HfApi(token=token)
    try:
        repository = api.create_repo(repo_id, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repository.repo_id, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            revision=branch,
            commit_message=message,
            allow_patterns=_PATTERNS,
        )
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Problem(f"{repo_id}: the Hub refused ({reason}) Check the name, and the token: hf auth login") from error
    return str(commit.commit_url)
