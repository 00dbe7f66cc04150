"""The maps on a photograph: what `regard maps` draws."""

from regard.patches.photograph import COLUMNS, QUERY, ROWS, DrawnMaps, Shown, draw_maps, weigh

__all__ = ["COLUMNS", "QUERY", "ROWS", "DrawnMaps", "Shown", "draw_maps", "weigh"]
