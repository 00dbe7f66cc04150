"""The parts that a module is given, spelled as JSON and read back: maps, fits, bases, locations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard import _check
from regard.continuous import (
    Basis,
    FourierBasis,
    GaussianBasis,
    Locations,
    ParaboloidBasis,
    fit_mixture,
    grid,
    line,
    match_moments,
    select_mixture,
)
from regard.maps.spelling import VALUES, as_map
from regard.nn.learned import Entmax

FITS: dict[str, Callable[..., Any]] = {
    "match_moments": match_moments,
    "fit_mixture": fit_mixture,
    "select_mixture": select_mixture,
}
_BASES: dict[str, Callable[..., Basis]] = {
    "gaussian": GaussianBasis,
    "paraboloid": ParaboloidBasis,
    "fourier": FourierBasis,
}
_TENSORS = ("s", "dim", "mask", "weights", "locations", "generator")  # what a call brings, or JSON cannot hold
_OWN = "Save its state_dict with safetensors, and make the module again in your own code."


def spell_map(map: Any) -> dict[str, Any]:
    """A map as JSON holds it.

    >>> from regard import entmax
    >>> spell_map(functools.partial(entmax, alpha=1.3))
    {'name': 'entmax', 'alpha': 1.3}
    """
    if isinstance(map, Entmax):
        return {"name": "learned-entmax", "heads": map.heads}
    value = as_map(map)
    name = next((name for name, kind in VALUES.items() if type(value) is kind), None)
    if name is None or not all(_plain(x) for x in value.parameters.values()):
        expected = f"one of {', '.join(VALUES)}, with plain numbers by their names, to be saved"
        _check.complain("map", getattr(value, "__name__", repr(value)), expected, _OWN, TypeError)
    return {"name": name, **{key: list(x) if isinstance(x, tuple) else x for key, x in value.parameters.items()}}


def read_map(said: Mapping[str, Any]) -> Any:
    """The map of a config; a learned alpha comes with the weights.

    >>> read_map({"name": "entmax", "alpha": 1.3})
    Entmax(alpha=1.3)
    """
    options = {key: value for key, value in said.items() if key != "name"}
    if said["name"] == "learned-entmax":
        return Entmax(**options)
    _check.choice("map", said["name"], tuple(VALUES))
    kind = VALUES[said["name"]]
    return kind(**_options("map", said["name"], options, set(kind.__match_args__)))


def spell_fit(fit: Any) -> dict[str, Any] | None:
    """How weights become a density, as JSON holds it."""
    return None if fit is None else _spell("fit", fit, FITS)


def read_fit(said: Mapping[str, Any] | None) -> Any:
    """The fit of a config.

    >>> read_fit({"name": "match_moments", "alpha": 2}).keywords
    {'alpha': 2}
    """
    if said is None:
        return None
    return _read("fit", said["name"], {key: value for key, value in said.items() if key != "name"}, FITS)


def spell_locations(where: Locations) -> dict[str, Any]:
    """A grid or a line by its shape, other locations by their points.

    >>> spell_locations(grid(14, 14))
    {'cells': [14, 14], 'at': 'centre'}
    """
    for at in ("centre", "corner") if where.shape is not None else ():
        made = _cells(where.shape or (), at)
        if torch.equal(made.points, where.points.double()) and torch.equal(made.sides, where.sides.double()):
            return {"cells": list(made.shape or ()), "at": at}
    shape = None if where.shape is None else list(where.shape)
    return {"points": where.points.tolist(), "sides": where.sides.tolist(), "shape": shape}


def read_locations(said: Mapping[str, Any]) -> Locations:
    """The locations of a config."""
    if "cells" in said:
        _only(said, "cells", "at")
        return _cells(tuple(said["cells"]), said["at"])
    _only(said, "points", "sides", "shape")
    shape = None if said["shape"] is None else tuple(said["shape"])
    return Locations(_numbers(said["points"]), _numbers(said["sides"]), shape)


def spell_basis(basis: Basis) -> dict[str, Any]:
    """A basis by its numbers, which JSON holds to the last digit.

    >>> spell_basis(FourierBasis.on_line(2))
    {'name': 'fourier', 'numbers': [[0.0], [1.0]]}
    """
    name = next((name for name, kind in _BASES.items() if type(basis) is kind), None)
    if name is None:
        _check.complain("basis", type(basis).__name__, "one of " + ", ".join(_BASES), _OWN, TypeError)
    held = ("numbers",) if name == "fourier" else ("centres", "covariance")
    return {"name": name, **{part: getattr(basis, part).tolist() for part in held}}


def read_basis(said: Mapping[str, Any]) -> Basis:
    """The basis of a config."""
    _check.choice("basis", said["name"], tuple(_BASES))
    if said["name"] == "fourier":
        _only(said, "name", "numbers")
        return FourierBasis(_numbers(said["numbers"]))
    _only(said, "name", "centres", "covariance")
    centres, covariance = _numbers(said["centres"]), _numbers(said["covariance"])
    return _BASES[said["name"]](centres, covariance[0] if len(covariance) == 1 else covariance)


def _spell(argument: str, part: Any, known: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    held = part if isinstance(part, functools.partial) else functools.partial(part)
    name = next((name for name, function in known.items() if held.func is function), None)
    if name is None or held.args or not all(_plain(value) for value in held.keywords.values()):
        got = getattr(held.func, "__name__", type(held.func).__name__)
        expected = f"one of {', '.join(known)}, with plain numbers by their names, to be saved"
        _check.complain(argument, got, expected, _OWN, TypeError)
    return {"name": name, **{k: list(v) if isinstance(v, tuple) else v for k, v in held.keywords.items()}}


def _read(argument: str, name: Any, options: Mapping[str, Any], known: Mapping[str, Callable[..., Any]]) -> Any:
    _check.choice(argument, name, tuple(known))
    takes = set(inspect.signature(known[name]).parameters) - set(_TENSORS)
    held = _options(argument, name, options, takes)
    return functools.partial(known[name], **held) if held else known[name]


def _options(argument: str, name: str, options: Mapping[str, Any], takes: set[str]) -> dict[str, Any]:
    """What a config says of a part, if these are names that it takes, with plain numbers."""
    held = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    for option, value in held.items():
        if option not in takes or not _plain(value):
            expected = f"one of {', '.join(sorted(takes))}, with plain numbers"
            _check.complain(argument, f"{name} with {option} = {value!r}", expected, "Take it out.")
    return held


def _plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(x, int | float) for x in value)
    return value is None or isinstance(value, bool | int | float | str)


def _numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _cells(shape: tuple[int, ...], at: Any) -> Locations:
    return grid(*shape, at=at) if len(shape) == 2 else line(*shape, at=at)


def _only(said: Mapping[str, Any], *keys: str) -> None:
    if set(said) != set(keys):
        _check.complain("keys", ", ".join(sorted(said)), ", ".join(keys), "Save the model again.")
