"""`save_pretrained`, `from_pretrained` and `push_to_hub`, for any class and for a module with settings."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder, upload


class Pretrained(ABC):
    """A model that can be saved, loaded, and uploaded to the Hugging Face Hub.

        pool.save_pretrained("my-pool")
        pool = AttentionPool.from_pretrained("my-pool")                  # or "user/name" on the Hub
        pool.push_to_hub("user/name", private=True)

    A subclass implements writing into a folder, reading from one, and its model card; a module that is built from
    settings is a `PretrainedModule`.

    >>> from regard.nn import AttentionPool
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     AttentionPool(4).save_pretrained(folder) == Path(folder), AttentionPool.from_pretrained(folder).dim
    (True, 4)
    """

    @abstractmethod
    def card(self, name: str, *, license: str | None = None) -> Card:
        """The model card (README.md); `name` is the folder or repository that the model is loaded from."""

    @abstractmethod
    def _write(self, place: ModelFolder) -> None:
        """Write everything but the model card."""

    @classmethod
    @abstractmethod
    def _opened(cls, place: ModelFolder) -> Self:
        """The model that was written into a folder, in evaluation mode."""

    def save_pretrained(self, folder: Path | str, *, card: Card | None = None) -> Path:
        """Write model.safetensors, config.json and README.md (default the model's card) into a folder; returns it."""
        place = ModelFolder(Path(folder))
        self._write(place)
        place.write_card(card or self.card(place.name))
        return place.path

    @classmethod
    def from_pretrained(
        cls,
        source: Path | str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Load the model, in evaluation mode, on the CPU. A mismatch raises a ValueError of one line.

        `source`: a folder, or a repository on the Hub: "user/name".
        `revision`: branch, tag or commit of the repository; default its main branch.
        `token`: for a private repository; default that of `hf auth login`.
        `cache_dir`: where downloads are stored; default that of huggingface_hub.
        `local_files_only`: use earlier downloads only; default False.
        """
        place = ModelFolder.find(
            source, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
        )
        return cls._opened(place)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: Card | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        commit_message: str | None = None,
    ) -> str:
        """Upload the model to a repository on the Hub, and return the URL of the commit.

        `repo_id`: "user/name"; created if it does not exist.
        `card`: the README.md; default `self.card(repo_id)`.
        `private`: visibility of a new repository; default that of the account.
        `token`: default that of `hf auth login`.
        `branch`: default main.
        `commit_message`: default "Upload a model of regard".
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self.save_pretrained(folder, card=card or self.card(repo_id))
            return upload(path, repo_id, private, token, branch, commit_message or "Upload a model of regard")


class PretrainedModule(Pretrained, nn.Module):
    """A module that is saved as settings and weights.

    A subclass states its `kind`, its settings as JSON, how to build it from them, and its model card:

    >>> import torch
    >>> class Scale(PretrainedModule):
    ...     kind = "scale"
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.rand(width))
    ...     def _hub_settings(self):
    ...         return {"width": len(self.factor)}
    ...     @classmethod
    ...     def _from_hub_settings(cls, settings):
    ...         return cls(settings["width"])
    ...     def card(self, name, *, license=None):
    ...         return Card(name, "Scales.", "image-feature-extraction", "...", self._hub_settings(), license=license)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one = Scale(3)
    ...     torch.equal(Scale.from_pretrained(one.save_pretrained(folder)).factor, one.factor)
    True
    """

    kind: ClassVar[str]

    @abstractmethod
    def _hub_settings(self) -> dict[str, Any]:
        """Everything but the weights, as a JSON object."""

    @classmethod
    @abstractmethod
    def _from_hub_settings(cls, settings: dict[str, Any]) -> Self:
        """A module with these settings, and initial weights."""

    def _write(self, place: ModelFolder) -> None:
        place.write({"kind": self.kind, **self._hub_settings()}, self.state_dict())

    @classmethod
    def _opened(cls, place: ModelFolder) -> Self:
        settings = place.settings(cls.kind)
        with place.describing(cls.__name__):
            module = cls._from_hub_settings(settings)
        place.refuse(settings.keys() - module._hub_settings().keys())
        place.fill(module)
        return module.eval()
