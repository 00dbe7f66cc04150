"""Model cards of modules that pool or mix features."""

from __future__ import annotations

from regard.hub import PretrainedModule
from regard.hub.card import Card


def pool_card(module: PretrainedModule, name: str, features: str, license: str | None) -> Card:
    """The model card of a module, from its docstring and settings.

    `module`: a pool, or an attention.
    `name`: the folder or repository that the module is loaded from.
    `features`: code of an expression for an example input.
    `license`: its identifier; None for none.
    """
    kind = type(module).__name__
    settings = module._hub_settings()
    code = f"""
import torch
from regard.nn import {kind}

module = {kind}.from_pretrained("{name}")
out = module({features})
"""
    first_line = (type(module).__doc__ or kind).split("\n", 1)[0]
    summary = f"`{kind}` of regard, {_size(module):,} parameters. {first_line}"
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
