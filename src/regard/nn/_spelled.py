"""Parts of a module to JSON and back: maps, fits, bases, locations."""

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
_REMEDY = "Save its state_dict with safetensors, and make the module again in your own code."


def spell_map(map: Any) -> dict[str, Any]:
    """A map as a JSON object.

    >>> import regard
    >>> spell_map(regard.Entmax(1.3))
    {'name': 'entmax', 'alpha': 1.3}
    """
    if isinstance(map, Entmax):
        return {"name": "learned-entmax", "heads": map.heads}
    value = as_map(map)
    name = next((name for name, kind in VALUES.items() if type(value) is kind), None)
    return _spell("map", value, name, VALUES)


def read_map(config: Mapping[str, Any]) -> Any:
    """The map that a config describes; the values of a learned alpha are among the weights.

    >>> read_map({"name": "entmax", "alpha": 1.3})
    Entmax(alpha=1.3)
    """
    options = {key: value for key, value in config.items() if key != "name"}
    if config["name"] == "learned-entmax":
        return Entmax(**options)
    _check.choice("map", config["name"], tuple(VALUES))
    kind = VALUES[config["name"]]
    return kind(**_options("map", config["name"], options, set(kind.__match_args__)))


def spell_fit(fit: Any) -> dict[str, Any] | None:
    """How weights become a density, as a JSON object.

    >>> from regard.continuous import MatchMoments
    >>> spell_fit(MatchMoments(2))
    {'name': 'match_moments', 'alpha': 2}
    """
    if fit is None:
        return None
    value = as_fit(fit)
    name = next((name for name, kind in FITS.items() if type(value) is kind), None)
    return _spell("fit", value, name, FITS)


def read_fit(config: Mapping[str, Any] | None) -> FitValue | None:
    """The fit that a config describes.

    >>> read_fit({"name": "match_moments", "alpha": 2})
    MatchMoments(alpha=2)
    """
    if config is None:
        return None
    _check.choice("fit", config["name"], tuple(FITS))
    kind, options = FITS[config["name"]], {key: value for key, value in config.items() if key != "name"}
    return kind(**_options("fit", config["name"], options, {field.name for field in fields(kind)}))


def spell_locations(where: Locations) -> dict[str, Any]:
    """A grid or a line by its shape, other locations by their points.

    >>> spell_locations(grid(14, 14))
    {'cells': [14, 14], 'at': 'centre'}
    """
    for at in ("centre", "corner") if where.shape is not None else ():
        cells = _cells(where.shape or (), at)
        if torch.equal(cells.points, where.points.double()) and torch.equal(cells.sides, where.sides.double()):
            return {"cells": list(cells.shape or ()), "at": at}
    shape = None if where.shape is None else list(where.shape)
    return {"points": where.points.tolist(), "sides": where.sides.tolist(), "shape": shape}


def read_locations(config: Mapping[str, Any]) -> Locations:
    """The locations that a config describes."""
    if "cells" in config:
        _only(config, "cells", "at")
        return _cells(tuple(config["cells"]), config["at"])
    _only(config, "points", "sides", "shape")
    shape = None if config["shape"] is None else tuple(config["shape"])
    return Locations(_numbers(config["points"]), _numbers(config["sides"]), shape)


def spell_basis(basis: Basis) -> dict[str, Any]:
    """A basis by its tensors as lists; JSON represents float64 exactly.

    >>> spell_basis(FourierBasis.on_line(2))
    {'name': 'fourier', 'numbers': [[0.0], [1.0]]}
    """
    name = next((name for name, kind in _BASES.items() if type(basis) is kind), None)
    if name is None:
        _check.complain("basis", type(basis).__name__, "one of " + ", ".join(_BASES), _REMEDY, TypeError)
    tensors = ("numbers",) if name == "fourier" else ("centres", "covariance")
    return {"name": name, **{part: getattr(basis, part).tolist() for part in tensors}}


def read_basis(config: Mapping[str, Any]) -> Basis:
    """The basis that a config describes."""
    _check.choice("basis", config["name"], tuple(_BASES))
    if config["name"] == "fourier":
        _only(config, "name", "numbers")
        return FourierBasis(_numbers(config["numbers"]))
    _only(config, "name", "centres", "covariance")
    centres, covariance = _numbers(config["centres"]), _numbers(config["covariance"])
    return _BASES[config["name"]](centres, covariance[0] if len(covariance) == 1 else covariance)


def _spell(argument: str, value: Any, name: str | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """A value by its name and parameters; an error where JSON cannot represent it."""
    if name is None or not all(_plain(x) for x in value.parameters.values()):
        expected = f"one of {', '.join(known)}, with plain numbers by their names, to be saved"
        _check.complain(argument, getattr(value, "__name__", repr(value)), expected, _REMEDY, TypeError)
    return {"name": name, **{key: list(x) if isinstance(x, tuple) else x for key, x in value.parameters.items()}}


def _options(argument: str, name: str, options: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The options of a part in a config; an error unless their names are `known` and their values plain."""
    parameters = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    for option, value in parameters.items():
        if option not in known or not _plain(value):
            expected = f"one of {', '.join(sorted(known))}, with plain numbers"
            _check.complain(argument, f"{name} with {option} = {value!r}", expected, "Take it out.")
    return parameters


def _plain(value: object) -> bool:
    """Whether a value is a number, string, boolean or None, or a tuple of numbers."""
    if isinstance(value, tuple):
        return all(isinstance(x, int | float) for x in value)
    return value is None or isinstance(value, bool | int | float | str)


def _numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _cells(shape: tuple[int, ...], at: Any) -> Locations:
    return grid(*shape, at=at) if len(shape) == 2 else line(*shape, at=at)


def _only(config: Mapping[str, Any], *keys: str) -> None:
    if set(config) != set(keys):
        _check.complain("keys", ", ".join(sorted(config)), ", ".join(keys), "Save the model again.")
