"""The kinds of output attention as values, with their names and labels, and all lists of them.

A kind is a small frozen value. `str(kind)` is its name in settings, on the command line and in JSON; `parse(name)` is
the inverse:

    discrete-softmax, discrete-sparsemax      Discrete("softmax"), Discrete("sparsemax")
    discrete-entmax, discrete-entmax-1.3      Discrete("entmax"), with another alpha than 1.5
    discrete-tvmax, discrete-tvmax-0.3        Discrete("tvmax"), with another gamma than 0.1
    continuous-softmax, continuous-sparsemax  Continuous("softmax"), Continuous("sparsemax")
    continuous-entmax, continuous-entmax-1.3  Continuous("entmax"), with another alpha than 1.5, up to 3
    mixture-2, mixture-4-sparse               MixtureOf(2), MixtureOf(4, sparse=True)
    mixture-4-paraboloids                     MixtureOf(4, family="paraboloid"); -paraboloids-sparse with sparse=True
    mixture-selected, mixture-selected-0.5    MixtureSelected(), with another price than the model's

Help and completion of the command line read the lists below: this file imports torch when a kind is first used.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from regard import _plain

if TYPE_CHECKING:
    from torch import Tensor

    from regard.attention.arguments import Map
    from regard.continuous import Density, Locations
    from regard.continuous.fit import Mixing

BasisName = Literal["gaussian", "fourier", "paraboloid", "thesis-49", "thesis-100"]  # of the continuous kinds
Family = Literal["gaussian", "paraboloid"]  # of the components of a mixture
SelfAttentionName = Literal["discrete", "continuous-softmax", "continuous-sparsemax"]  # of cells, inside the layers
PlacementName = Literal["centre", "corner"]  # of a cell on the unit square
EM_ITERATIONS = ("usual", "thesis")
"""Names for the EM iterations of mixtures, see `Fitting`; a number is also one."""

MAP_NAMES = ("softmax", "sparsemax", "entmax")
"""Maps that need no grid, by the names that `named_map` takes; also entmax-ALPHA."""
_NUMBER = r"\d+(?:\.\d+)?"
_MAP = re.compile(rf"softmax|sparsemax|(entmax|tvmax)(?:-({_NUMBER}))?")
_MIXTURE = re.compile(rf"mixture-(?:([1-9]\d*)(-paraboloids)?(-sparse)?|selected(?:-({_NUMBER}))?)")
_FAMILY = re.compile(rf"softmax|sparsemax|entmax(?:-({_NUMBER}))?")
_ALPHAS = {"softmax": 1, "entmax": 1.5, "sparsemax": 2}  # of the densities


class Kind(ABC):
    """A way to attend to the cells of a picture: `Discrete`, or a `FittedKind`, which has a density."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that `parse` takes."""

    @property
    def label(self) -> str:
        """The name in words, for people."""
        return self.name.replace("-", " ")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Discrete(Kind):
    """Weights on the cells by a map, by its name (see `named_map`).

    >>> print(Discrete("entmax-1.3"), Discrete("entmax-1.50"))
    discrete-entmax-1.3 discrete-entmax
    """

    map: str = "softmax"

    def __post_init__(self) -> None:
        """Check the map's name, and write it in its standard form."""
        object.__setattr__(self, "map", standard_map_name(self.map, (1, 1)))

    @property
    def name(self) -> str:
        """The name, with the map's."""
        return f"discrete-{self.map}"

    @property
    def alpha(self) -> float | None:
        """The alpha of entmax that the map is: 1 for softmax, 2 for sparsemax; None for TVmax."""
        if self.map in _ALPHAS:
            return _ALPHAS[self.map]
        return float(self.map.removeprefix("entmax-")) if self.map.startswith("entmax") else None

    def annealed(self, share: float) -> Discrete:
        """The same with an alpha that is 1 (softmax) at share 0 and its own at share 1; one without alpha unchanged.

        In steps of a hundredth. A cell of weight zero gets no gradient: a sparse attention that starts as softmax has
        seen all cells before it drops any.

        >>> [str(Discrete("sparsemax").annealed(share)) for share in (0, 0.25, 0.5, 1)]
        ['discrete-softmax', 'discrete-entmax-1.25', 'discrete-entmax', 'discrete-sparsemax']
        """
        if self.alpha is None or share >= 1:
            return self
        return Discrete(f"entmax-{round(1 + (self.alpha - 1) * share, 2):g}")

    @property
    def label(self) -> str:
        """The name in words; that of TVmax without "discrete"."""
        return f"TV{self.map[2:]}".replace("-", " ") if self.map.startswith("tvmax") else super().label


@dataclass(frozen=True)
class Fitting:
    """What a model sets for all its mixtures: EM's steps, and the `price` of a component where it selects their number.

    `em_iterations` is a number, "usual" (5, and 20 where the number of components is selected) or "thesis" (Table 6.3:
    2 for up to two components, 5 for more, 20 where their number is selected).

    >>> [Fitting(em_iterations=how).iterations(2) for how in ("usual", "thesis", 7)]
    [5, 2, 7]
    """

    price: float = 0.1
    em_iterations: int | str = "usual"

    def __post_init__(self) -> None:
        """Check both."""
        object.__setattr__(self, "price", _plain.number("price", self.price, at_least=0))
        if isinstance(self.em_iterations, str):
            if self.em_iterations not in EM_ITERATIONS:
                expected = f"a whole number >= 1, {' or '.join(EM_ITERATIONS)}"
                _plain.complain("em_iterations", repr(self.em_iterations), expected, "Write one of these.")
        else:
            _plain.count("em_iterations", self.em_iterations)

    def iterations(self, components: int | None) -> int:
        """EM steps for so many components; None where their number is selected."""
        if not isinstance(self.em_iterations, str):
            return self.em_iterations
        if components is None:
            return 20
        return 2 if self.em_iterations == "thesis" and components <= 2 else 5


class FittedKind(Kind):
    """A density that is fitted to softmax weights on the cells."""

    @abstractmethod
    def fit(
        self, weights: Tensor, where: Locations, mask: Tensor | None, *, training: bool, fitting: Fitting | None = None
    ) -> Density:
        """One density for each row of weights (..., L); `fitting` is for mixtures, default `Fitting()`."""


@dataclass(frozen=True)
class Continuous(FittedKind):
    """One density by moment matching: `map` "softmax" gives a Gaussian, "sparsemax" a truncated paraboloid.

    "entmax-ALPHA", alpha up to 3, gives the density between or beyond them, "entmax" that of 1.5.

    >>> print(Continuous("entmax-1.3"), Continuous("entmax-2"), Continuous("sparsemax").alpha)
    continuous-entmax-1.3 continuous-sparsemax 2
    """

    map: str = "softmax"

    def __post_init__(self) -> None:
        """Check the map's name, and write it in its standard form."""
        if not _FAMILY.fullmatch(self.map):
            expected = "softmax, sparsemax, entmax or entmax-1.3 (any alpha up to 3)"
            _plain.complain("map", repr(self.map), expected, "Write one of these.")
        object.__setattr__(self, "map", standard_map_name(self.map))
        if self.alpha > 3:
            _plain.complain("alpha", self.alpha, "a number from 1 to 3", "1 is softmax, 2 is sparsemax.")

    @property
    def alpha(self) -> float:
        """The family of the density, as in `regard.continuous.match_moments`."""
        return _ALPHAS[self.map] if self.map in _ALPHAS else float(self.map.removeprefix("entmax-"))

    @property
    def name(self) -> str:
        """The name, with the map's."""
        return f"continuous-{self.map}"

    def fit(
        self, weights: Tensor, where: Locations, mask: Tensor | None, *, training: bool, fitting: Fitting | None = None
    ) -> Density:
        """See `regard.continuous.match_moments`."""
        from regard.continuous import match_moments

        return match_moments(weights, where, self.alpha, mask)


@dataclass(frozen=True)
class MixtureOf(FittedKind):
    """A mixture by EM, started from regions; `sparse` drops weak components (default False).

    `family` "gaussian" (default), or "paraboloid": truncated paraboloids with the moments of the Gaussians, so that
    there is no attention outside of their ellipses.

    >>> print(MixtureOf(4, sparse=True), "has the label:", MixtureOf(4, sparse=True).label)
    mixture-4-sparse has the label: up to 4, sparse
    >>> print(MixtureOf(3, family="paraboloid"))
    mixture-3-paraboloids
    """

    components: int = 2
    sparse: bool = False
    family: Family = "gaussian"

    def __post_init__(self) -> None:
        """Check the number and the family."""
        _plain.count("components", self.components)
        _plain.choice("family", self.family, get_args(Family))

    @property
    def name(self) -> str:
        """The name, with the number of components."""
        family = "-paraboloids" if self.family == "paraboloid" else ""
        return f"mixture-{self.components}{family}{'-sparse' if self.sparse else ''}"

    @property
    def label(self) -> str:
        """The number of components in words, and what they are unless they are Gaussians."""
        part = "paraboloid" if self.family == "paraboloid" else "component"
        if self.sparse:
            return f"up to {self.components}{' paraboloids' if part == 'paraboloid' else ''}, sparse"
        return f"{self.components} {part}{'' if self.components == 1 else 's'}"

    def fit(
        self, weights: Tensor, where: Locations, mask: Tensor | None, *, training: bool, fitting: Fitting | None = None
    ) -> Density:
        """See `regard.continuous.fit_mixture`."""
        from regard.continuous import fit_mixture

        mixing: Mixing = "sparsemax" if self.sparse else "em"
        alpha = 2 if self.family == "paraboloid" else 1
        iterations = (fitting or Fitting()).iterations(self.components)
        return fit_mixture(weights, where, self.components, iterations, alpha=alpha, mixing=mixing, mask=mask)


@dataclass(frozen=True)
class MixtureSelected(FittedKind):
    """A mixture whose number of Gaussians is chosen per example at test time, at a `price` each; one in training.

    Without a price, the default, it is the model's (`Fitting.price`, 0.1 unless its settings say another).

    >>> print(MixtureSelected(0.5), MixtureSelected())
    mixture-selected-0.5 mixture-selected
    """

    price: float | None = None

    def __post_init__(self) -> None:
        """Check the number."""
        if self.price is not None:
            object.__setattr__(self, "price", _plain.number("price", self.price, at_least=0))

    @property
    def name(self) -> str:
        """The name, with the price unless it is the model's."""
        return "mixture-selected" + ("" if self.price is None else _suffix(self.price))

    @property
    def label(self) -> str:
        """The name in words, with the price unless it is the model's."""
        return "selected K" + ("" if self.price is None else _suffix(self.price, ", price "))

    def fit(
        self, weights: Tensor, where: Locations, mask: Tensor | None, *, training: bool, fitting: Fitting | None = None
    ) -> Density:
        """See `regard.continuous.select_mixture`; random starts come from a local generator with a fixed seed."""
        import torch

        from regard.continuous import match_moments, select_mixture

        if training:
            return match_moments(weights, where, 1, mask)
        how = fitting or Fitting()
        price = how.price if self.price is None else self.price
        starts = torch.Generator(weights.device).manual_seed(0)
        return select_mixture(
            weights, where, penalty=price, iterations=how.iterations(None), mask=mask, generator=starts
        )


def named_map(name: str, cells: tuple[int, int] | None = None) -> tuple[str, Map]:
    """The standard name of a map, and the map: softmax, sparsemax, entmax or entmax-ALPHA (default 1.5).

    With `cells`, the height and width of a grid, also tvmax or tvmax-GAMMA (default 0.1).

    >>> named_map("entmax-1.3")[1], named_map("entmax-1.5")[0]
    (Entmax(alpha=1.3), 'entmax')
    """
    from regard.maps.entmax import Entmax
    from regard.maps.spelling import map_name, parse_map

    if not _MAP.fullmatch(name) or (cells is None and name.startswith("tvmax")):
        expected = "softmax, sparsemax, entmax or entmax-1.3 (any alpha)"
        expected += ", tvmax or tvmax-0.3 (any gamma)" if cells is not None else ""
        _plain.complain("map", repr(name), expected, "Write one of these.")
    value = parse_map(name, cells)
    if isinstance(value, Entmax):
        _plain.number("alpha", value.alpha, at_least=1, remedy="1 is softmax, 2 is sparsemax.")
    return map_name(value), value


def standard_map_name(name: str, cells: tuple[int, int] | None = None) -> str:
    """The standard name of a map; arguments as in `named_map`. A name without a number is its own standard.

    >>> standard_map_name("entmax-1.50"), standard_map_name("entmax-2"), standard_map_name("softmax")
    ('entmax', 'sparsemax', 'softmax')
    """
    plain = _MAP.fullmatch(name) and "-" not in name and (cells is not None or name != "tvmax")
    return name if plain else named_map(name, cells)[0]


def _suffix(value: float, before: str = "-") -> str:
    """The suffix of a name for a parameter."""
    from regard.maps.spelling import number_suffix

    return before + number_suffix(value)[1:]


KINDS: tuple[Kind, ...] = (
    Discrete("softmax"),
    Discrete("sparsemax"),
    Discrete("entmax"),
    Discrete("tvmax"),
    Continuous("softmax"),
    Continuous("sparsemax"),
    MixtureOf(2),
    MixtureOf(4),
    MixtureOf(4, sparse=True),
    MixtureOf(4, sparse=True, family="paraboloid"),
    MixtureSelected(),
)
"""The kinds that the page and help texts offer; `parse` takes any alpha, gamma, number of components and price."""

NAMES = tuple(map(str, KINDS))
_OTHERS = (
    "discrete-entmax-1.3 (any alpha), discrete-tvmax-0.3 (any gamma), continuous-entmax-1.3 (any alpha up to 3), "
    "mixture-3 (any number), mixture-3-sparse, mixture-3-paraboloids, "
)
WRITTEN = f"{', '.join(NAMES)}; also {_OTHERS}mixture-selected-0.5 (any price)"
"""All names that `parse` takes, in one line."""

COMPARED: tuple[Kind, ...] = (Discrete("softmax"), Discrete("sparsemax"), Continuous("softmax"), MixtureOf(2))
"""The kinds that `regard compare` trains by default."""

EVALUATED: tuple[Kind, ...] = (
    Discrete("softmax"),
    Discrete("sparsemax"),
    Continuous("softmax"),
    Continuous("sparsemax"),
    MixtureOf(2),
    MixtureSelected(),
)
"""The kinds that `regard evaluate` uses by default, beside the model's."""

DEMO: tuple[Kind, ...] = (Discrete("softmax"), Continuous("softmax"))
"""The kinds that `regard demo` trains."""


def parse(kind: str | Kind) -> Kind:
    """The kind with a name; a kind is returned unchanged.

    >>> parse("mixture-4-sparse")
    MixtureOf(components=4, sparse=True, family='gaussian')
    >>> parse("mixture")
    Traceback (most recent call last):
    ValueError: attention: got 'mixture', expected one of discrete-softmax, ...
    """
    value = kind if isinstance(kind, Kind) else read_name(str(kind))
    if value is None:
        _plain.complain("attention", repr(kind), f"one of {WRITTEN}", "Write one of these.")
    return value


def read_name(name: str) -> Kind | None:
    """The kind with a name; None if there is none."""
    family, _, rest = name.partition("-")
    if family == "discrete" and _MAP.fullmatch(rest):
        return Discrete(rest)
    if family == "continuous" and _FAMILY.fullmatch(rest):
        return Continuous(rest)
    if mixture := _MIXTURE.fullmatch(name):
        components, paraboloids, sparse, price = mixture.groups()
        if components:
            return MixtureOf(int(components), bool(sparse), "paraboloid" if paraboloids else "gaussian")
        return MixtureSelected(float(price)) if price else MixtureSelected()
    return None
