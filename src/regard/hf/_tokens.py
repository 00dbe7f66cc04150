"""What the tokens of a sequence are: class, registers, patches of a picture and where they lie in it, text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard import _check


class Span(NamedTuple):
    """Consecutive tokens of one kind: "cls", "register", "distillation", "patch", "image", "text", ...

    `grid`: (height, width) of patches, in the order of reading; None for what has no place in a picture.
    `merge`: side of the squares of patches that lie together in the sequence; 1 for the order of reading.
    `cells`: the cell of each token, counted in the order of reading, where tokens have another order or are only a part
    of the picture, such as a window; default None.

    >>> Span("patch", 1, 7, (2, 3)).stop
    7
    """

    kind: str
    start: int
    stop: int
    grid: tuple[int, int] | None = None
    merge: int = 1
    cells: tuple[int, ...] | None = None

    def order(self) -> Tensor:
        """The cell of each token, counted in the order of reading.

        >>> Span("patch", 0, 8, (2, 4), merge=2).order()
        tensor([0, 1, 4, 5, 2, 3, 6, 7])
        """
        if self.cells is not None:
            return torch.tensor(self.cells)
        height, width = self.grid or (1, self.stop - self.start)
        side = self.merge
        numbers = torch.arange(height * width).reshape(height // side, side, width // side, side)
        return numbers.transpose(1, 2).flatten()


@dataclass(frozen=True)
class Windows:
    """Windows of a picture, one after the other along the batch: the grid, the side of a window, the cyclic shift.

    The grid is padded at the bottom and on the right to whole windows.

    >>> Windows((3, 4), side=2, shift=1).count
    4
    """

    grid: tuple[int, int]
    side: int
    shift: int

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width in whole windows."""
        return (-(-self.grid[0] // self.side) * self.side, -(-self.grid[1] // self.side) * self.side)

    @property
    def count(self) -> int:
        """The number of windows of a picture."""
        return self.padded[0] * self.padded[1] // self.side**2

    def joined(self, x: Tensor) -> Tensor:
        """Values of tokens (B windows, ..., side^2) as pictures (B, ..., h, w)."""
        (height, width), side = self.padded, self.side
        x = x.reshape(-1, height // side, width // side, *x.shape[1:-1], side, side)
        x = x.movedim((1, 2), (-4, -2)).flatten(-4, -3).flatten(-2, -1)
        x = x.roll((self.shift, self.shift), (-2, -1)) if self.shift else x
        return x[..., : self.grid[0], : self.grid[1]]

    def cut(self, pictures: Tensor) -> Tensor:
        """Pictures (..., h, w) as values of tokens (windows, ..., side^2); the padding is zero."""
        (height, width), side = self.padded, self.side
        x = torch.nn.functional.pad(pictures, (0, width - self.grid[1], 0, height - self.grid[0]))
        x = x.roll((-self.shift, -self.shift), (-2, -1)) if self.shift else x
        tiles: Tensor = x.unflatten(-1, (width // side, side)).unflatten(-3, (height // side, side))
        return tiles.movedim((-4, -2), (0, 1)).flatten(-2, -1).flatten(0, 1)


@dataclass(frozen=True)
class Tokens:
    """What the tokens of a sequence are, span by span; or windows of a picture, each a sequence of its own.

    `spans`: from the first token to the last, without gaps.
    `windows`: of an attention inside windows; default None.

    >>> tokens = Tokens.picture((2, 3), prefix=("cls", "register"))
    >>> tokens.length, tokens.places("register"), tokens.kinds
    (8, [1], ('cls', 'register', 'patch'))
    >>> tokens.pictures(torch.arange(8.0))
    tensor([[2., 3., 4.],
            [5., 6., 7.]])
    """

    spans: tuple[Span, ...]
    windows: Windows | None = None

    def __post_init__(self) -> None:
        expected = 0
        for span in self.spans:
            cells = None if span.grid is None else span.grid[0] * span.grid[1]
            if cells is not None and span.cells is not None and len({*span.cells} & {*range(cells)}) == len(span.cells):
                cells = len(span.cells)
            if span.start != expected or span.stop < span.start or cells not in (None, span.stop - span.start):
                what = f"a span that starts at {expected} and has as many tokens as its grid has cells"
                _check.complain("spans", repr(span), what, "Tokens.picture and Tokens.text make the usual ones.")
            expected = span.stop

    @classmethod
    def picture(cls, grid: tuple[int, int], prefix: int | Sequence[str] = 0) -> Tokens:
        """Some tokens, and then all patches of a grid (height, width), row by row.

        `prefix`: the kinds of the tokens before the patches, or their number; default 0.

        >>> Tokens.picture((14, 14), prefix=1).spans[1]
        Span(kind='patch', start=1, stop=197, grid=(14, 14), merge=1, cells=None)
        """
        height, width = (_check.count("grid", side) for side in grid)
        kinds = ("prefix",) * prefix if isinstance(prefix, int) else tuple(prefix)
        spans: list[Span] = []
        for place, kind in enumerate(kinds):
            if spans and spans[-1].kind == kind:
                spans[-1] = spans[-1]._replace(stop=place + 1)
            else:
                spans.append(Span(kind, place, place + 1))
        return cls((*spans, Span("patch", len(kinds), len(kinds) + height * width, (height, width))))

    @classmethod
    def text(cls, length: int) -> Tokens:
        """A sequence of words, without a picture.

        >>> Tokens.text(5).kinds
        ('text',)
        """
        return cls((Span("text", 0, _check.count("length", length)),))

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.spans[-1].stop if self.spans else 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that occur, in the order of their first token."""
        return tuple(dict.fromkeys(span.kind for span in self.spans))

    @property
    def grid(self) -> tuple[int, int] | None:
        """(height, width) of the picture, or of the first one; None without one."""
        if self.windows is not None:
            return self.windows.grid
        return next((span.grid for span in self.spans if span.grid is not None), None)

    def places(self, kind: str) -> list[int]:
        """The places of all tokens of a kind."""
        return [place for span in self.spans if span.kind == kind for place in range(span.start, span.stop)]

    def pictures(self, x: Tensor, number: int = 0) -> Tensor:
        """Values of tokens (..., L) on the grid of their picture, (..., h, w), other tokens dropped, zero outside.

        Windows of a picture come together again: (B windows, ..., side^2) becomes (B, ..., h, w). `number`: which
        picture, where a sequence has several; default the first.
        """
        _check.last_axis("x", x, self.length, "one for each token")
        if self.windows is not None:
            return self.windows.joined(x)
        pictures = self._with_grids()
        if not 0 <= number < len(pictures):
            got = f"{number} of {len(pictures)} pictures in these tokens"
            _check.complain("number", got, "a picture that is there", "Only layers that see patches have pictures.")
        span, (height, width) = pictures[number]
        cells = x.new_zeros(*x.shape[:-1], height * width)
        cells[..., span.order().to(x.device)] = x[..., span.start : span.stop]
        return cells.reshape(*x.shape[:-1], height, width)

    def shares(self, regions: Tensor) -> Tensor:
        """The share of each token in regions (M, H, W) of the picture: (M, L), or (windows, M, L) for windows.

        A patch has the mean of the region over its cell, every other token zero; of several pictures only the first
        has regions.
        """
        if self.grid is None:
            _check.complain("regions", "regions of a picture", "tokens with a grid", "Choose layers that see patches.")
        cells: Tensor = torch.nn.functional.adaptive_avg_pool2d(regions.float()[None], self.grid)[0]
        if self.windows is not None:
            return self.windows.cut(cells)
        span, _ = self._with_grids()[0]
        shares = cells.new_zeros(len(cells), self.length)
        shares[:, span.start : span.stop] = cells.flatten(1)[:, span.order()]
        return shares

    def _with_grids(self) -> list[tuple[Span, tuple[int, int]]]:
        return [(span, span.grid) for span in self.spans if span.grid is not None]
