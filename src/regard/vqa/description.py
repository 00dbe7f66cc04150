"""How features were made: by which backbone, from which of its stages, from pictures of which size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.backbones import Backbone, fingerprint

UNNAMED = "backbone"
"""The name of a backbone that was given none: it cannot be loaded by it."""


@dataclass(frozen=True)
class FeatureDescription:
    """Features with equal descriptions are the same numbers for the same picture. Stores, runs and predictors have one.

    name        the backbone's name or folder, from which it can be loaded; not compared
    weights     the fingerprint of its weights and config, `regard.backbones.fingerprint`
    stages      whether the maps of all stages are concatenated, or only the last one is used
    size        the side in pixels that pictures are resized to; None for an older store, which does not record it. Not
                compared, as `weights` depends on it too: it makes for a better message
    untrained   whether the weights are known to be random; not compared

    >>> from regard.backbones import make_backbone
    >>> backbone = make_backbone("small", size=32, widths=[4], depths=[1])
    >>> last, every = (FeatureDescription.of(backbone, "small", stages) for stages in (False, True))
    >>> FeatureDescription.from_json(last.to_json()) == last, last.fingerprint == every.fingerprint
    (True, False)
    >>> last.difference(every)
    'they are of the last stage alone, not of all stages'
    """

    name: str = field(compare=False)
    weights: str
    stages: bool
    size: int | None = field(compare=False)
    untrained: bool = field(compare=False, default=False)

    @classmethod
    def of(cls, backbone: Backbone, name: str, stages: bool = False, untrained: bool = False) -> FeatureDescription:
        """The description of the features that a backbone makes."""
        return cls(name, fingerprint(backbone), stages, backbone.preparation.size, untrained)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> FeatureDescription:
        """The inverse of `to_json`; reads the earlier form too, a "name" and a "fingerprint" that may end in "-stages".

        >>> FeatureDescription.from_json({"name": "out/backbone", "fingerprint": "0123456789abcdef-stages"})
        FeatureDescription(name='out/backbone', weights='0123456789abcdef', stages=True, size=None, untrained=False)
        """
        if "fingerprint" in written:
            weights, _, suffix = str(written["fingerprint"]).partition("-")
            return cls(str(written["name"]), weights, suffix == "stages", None)
        size = None if written["size"] is None else int(written["size"])
        random = bool(written.get("untrained", False))
        return cls(str(written["name"]), str(written["weights"]), bool(written["stages"]), size, random)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; without "untrained" unless it is, as runs of earlier days are compared with it."""
        written = {"name": self.name, "weights": self.weights, "stages": self.stages, "size": self.size}
        return written | ({"untrained": True} if self.untrained else {})

    @property
    def fingerprint(self) -> str:
        """A short hash, the same for equal descriptions."""
        return hashlib.sha256(json.dumps([self.weights, self.stages]).encode()).hexdigest()[:16]

    def difference(self, needed: FeatureDescription) -> str | None:
        """In words, the first difference of these features from the needed ones; None if they are the same."""
        if self.stages != needed.stages:
            return f"they are of {_which_stages(self)}, not of {_which_stages(needed)}"
        if self.size is not None and needed.size is not None and self.size != needed.size:
            return f"they are of pictures of {self.size} x {self.size} pixels, not {needed.size} x {needed.size}"
        if self.weights != needed.weights:
            return f"they are of the weights and config with fingerprint {self.weights}, not {needed.weights}"
        return None


def _which_stages(description: FeatureDescription) -> str:
    return "all stages" if description.stages else "the last stage alone"
