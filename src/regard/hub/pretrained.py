"""What can be saved, loaded and given to the Hub: the three methods, for any class and for a module with settings."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from regard.hub.card import Card
from regard.hub.model_folder import ModelFolder, upload


class Pretrained(ABC):
    """What can be saved, loaded, and given to the Hugging Face Hub.

        pool.save_pretrained("my-pool")
        pool = AttentionPool.from_pretrained("my-pool")                  # or "user/name" on the Hub
        pool.push_to_hub("user/name", private=True)

    A class says how it is written into a folder and read from one, and what its card is; a module that is made again
    from settings is a `PretrainedModule`.

    >>> from regard.nn import AttentionPool
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     AttentionPool(4).save_pretrained(folder) == Path(folder), AttentionPool.from_pretrained(folder).dim
    (True, 4)
    """

    @abstractmethod
    def card(self, name: str, *, license: str | None = None) -> Card:
        """The README.md of the model, under the `name` that it is loaded by."""

    @abstractmethod
    def _write(self, place: ModelFolder) -> None:
        """Write all but the card."""

    @classmethod
    @abstractmethod
    def _opened(cls, place: ModelFolder) -> Self:
        """The model that was written into a folder, in evaluation mode."""

    def save_pretrained(self, folder: Path | str, *, card: Card | None = None) -> Path:
        """Write model.safetensors, config.json and README.md (`card`, or one with what is known) into a folder."""
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
        """The model in a folder, or in a repository on the Hub: "user/name", at a branch, tag or commit `revision`.

        It is in evaluation mode, on the CPU. What does not fit raises a ValueError of one line.
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
        """Upload the model to "user/name" on the Hub, which is made if it is not there; returns the commit's address.

        The token is that of `hf auth login` unless given.
        """
        with tempfile.TemporaryDirectory() as folder:
            made = self.save_pretrained(folder, card=card or self.card(repo_id))
            return upload(made, repo_id, private, token, branch, commit_message or "Upload a model of regard")


class PretrainedModule(Pretrained, nn.Module):
    """A module that is made again from settings, and then given its weights.

    A class says its `kind`, its settings as JSON holds them, how it is made from them, and its card:

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
        """All that is not weights, as JSON holds it."""

    @classmethod
    @abstractmethod
    def _from_hub_settings(cls, settings: dict[str, Any]) -> Self:
        """The module that has these settings, with weights of its own."""

    def _write(self, place: ModelFolder) -> None:
        place.write({"kind": self.kind, **self._hub_settings()}, self.state_dict())

    @classmethod
    def _opened(cls, place: ModelFolder) -> Self:
        settings = place.settings(cls.kind)
        with place.describing(cls.__name__):
            made = cls._from_hub_settings(settings)
        place.refuse(settings.keys() - made._hub_settings().keys())
        place.fill(made)
        return made.eval()
