"""The cards of modules that pool or mix features."""

from __future__ import annotations

from regard.hub import PretrainedModule
from regard.hub.card import Card


def pool_card(module: PretrainedModule, name: str, features: str, license: str | None) -> Card:
    """What the module is, from its docstring and settings; `features` is code that makes an input for it."""
    kind = type(module).__name__
    settings = module._hub_settings()
    code = f"""
import torch
from regard.nn import {kind}

module = {kind}.from_pretrained("{name}")
out = module({features})
"""
    said = (type(module).__doc__ or kind).split("\n", 1)[0]
    summary = f"`{kind}` of regard, {_size(module):,} parameters. {said}"
    return Card(
        name,
        summary,
        "image-feature-extraction",
        code,
        # The numbers of a basis fill pages: config.json has them.
        {key: value if key != "basis" else value["name"] for key, value in settings.items()},
        tags=[module.kind],
        license=license,
    )


def _size(module: PretrainedModule) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
