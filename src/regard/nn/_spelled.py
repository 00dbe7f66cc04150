"""The parts that a module is given, spelled as JSON and read back: maps, fits, bases, locations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
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
    grid,
    line,
)
from regard.continuous.fits import FITS, FitValue, as_fit
from regard.maps.spelling import VALUES, as_map
from regard.nn.learned import Entmax

_BASES: dict[str, Callable[..., Basis]] = {
    "gaussian": GaussianBasis,
    "paraboloid": ParaboloidBasis,
    "fourier": FourierBasis,
}
_OWN = "Save its state_dict with safetensors, and make the module again in your own code."


def spell_map(map: Any) -> dict[str, Any]:
    """A map as JSON holds it.

    >>> import regard
    >>> spell_map(regard.Entmax(1.3))
    {'name': 'entmax', 'alpha': 1.3}
    """
    if isinstance(map, Entmax):
        return {"name": "learned-entmax", "heads": map.heads}
    value = as_map(map)
    name = next((name for name, kind in VALUES.items() if type(value) is kind), None)
    return _spell("map", value, name, VALUES)


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
    """How weights become a density, as JSON holds it.

    >>> from regard.continuous import MatchMoments
    >>> spell_fit(MatchMoments(2))
    {'name': 'match_moments', 'alpha': 2}
    """
    if fit is None:
        return None
    value = as_fit(fit)
    name = next((name for name, kind in FITS.items() if type(value) is kind), None)
    return _spell("fit", value, name, FITS)


def read_fit(said: Mapping[str, Any] | None) -> FitValue | None:
    """The fit of a config.

    >>> read_fit({"name": "match_moments", "alpha": 2})
    MatchMoments(alpha=2)
    """
    if said is None:
        return None
    _check.choice("fit", said["name"], tuple(FITS))
    kind, options = FITS[said["name"]], {key: value for key, value in said.items() if key != "name"}
    return kind(**_options("fit", said["name"], options, {field.name for field in fields(kind)}))


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


def _spell(argument: str, value: Any, name: str | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """A value by its name and parameters, or a complaint about what JSON cannot hold."""
    if name is None or not all(_plain(x) for x in value.parameters.values()):
        expected = f"one of {', '.join(known)}, with plain numbers by their names, to be saved"
        _check.complain(argument, getattr(value, "__name__", repr(value)), expected, _OWN, TypeError)
    return {"name": name, **{key: list(x) if isinstance(x, tuple) else x for key, x in value.parameters.items()}}


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
