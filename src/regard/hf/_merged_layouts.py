"""The tokens in the vision towers of Qwen: patches in squares that are merged later, and windows of these."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.hf._layout import Layout
from regard.hf._tokens import Span, Tokens


class MergedPatchLayout(Layout):
    """The vision tower of Qwen2-VL and Qwen3-VL: one call for each frame, patches in squares that are merged later."""

    def __init__(self, tower: nn.Module, side: int) -> None:
        """Follow the tower; `side` is that of the squares."""
        self.tower, self.side = tower, side
        self.grids: Iterator[tuple[int, int]] = iter(())

    def prepare(self) -> list[Any]:
        """Look at the input of the tower."""
        return [self.tower.register_forward_pre_hook(self._note, with_kwargs=True)]

    def _note(self, _: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        frames = keywords["grid_thw"] if "grid_thw" in keywords else given[1]
        self.grids = iter([(int(h), int(w)) for t, h, w in frames.tolist() for _ in range(int(t))])

    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """The patches of the next frame."""
        return (Tokens((Span("patch", 0, keys, next(self.grids), self.side),)),)


class MergedWindowLayout(Layout):
    """The vision tower of Qwen2.5-VL: one call for each window, or in some layers for each frame, in windows' order."""

    def __init__(self, tower: nn.Module, attention: nn.Module, config: Any) -> None:
        """Follow the input of the tower, and the attention, which is told where its sequences end."""
        self.tower, self.attention = tower, attention
        self.side = int(config.spatial_merge_size)
        self.window = int(config.window_size) // self.side // int(config.patch_size)  # in squares of patches
        self.frames: list[tuple[int, int]] = []
        self.calls: Iterator[Tokens] = iter(())

    def prepare(self) -> list[Any]:
        """Look at the inputs of both."""
        return [
            self.tower.register_forward_pre_hook(self._note_frames, with_kwargs=True),
            self.attention.register_forward_pre_hook(self._note_ends, with_kwargs=True),
        ]

    def _note_frames(self, _: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        frames = keywords["grid_thw"] if "grid_thw" in keywords else given[1]
        self.frames = [(int(h), int(w)) for t, h, w in frames.tolist() for _ in range(int(t))]

    def _note_ends(self, _: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ends = (keywords["cu_seqlens"] if "cu_seqlens" in keywords else given[1]).tolist()
        self.calls = iter(self._sequences(ends))

    def _sequences(self, ends: list[int]) -> Iterator[Tokens]:
        """The tokens between each end and the next: cells of the frame that the first of them lies in."""
        cells = [(grid, cell) for grid in self.frames for cell in self._order(grid)]
        for start, stop in itertools.pairwise(ends):
            some = tuple(cell for _, cell in cells[start:stop])
            yield Tokens((Span("patch", 0, stop - start, cells[start][0], cells=some),))

    def _order(self, grid: tuple[int, int]) -> list[int]:
        """The cells of a frame: windows in the order of reading, in each the squares, in each the patches."""
        height, width = grid

        def reading(row: int) -> tuple[int, int]:
            square = row // self.side
            return square // self.window, square % self.window

        def place(cell: int) -> tuple[int, ...]:
            row, column = divmod(cell, width)
            (down, y), (across, x) = reading(row), reading(column)
            return down, across, y, x, row % self.side, column % self.side

        return sorted(range(height * width), key=place)

    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """The patches of the next sequence."""
        return (next(self.calls),)
