"""Measures of one attention map against a region, pixel by pixel: what they mean, and slow.

`values` is a list of rows of floats, `region` one of booleans of the same size.
"""

import math


def cell_at(pixel, pixels, cells):
    """The cell in which the centre of a pixel lies, along one side."""
    return math.floor((2 * pixel + 1) * cells / (2 * pixels))


def spread(weights, height, width):
    """The weights of cells spread over pixels: the same for all pixels of a cell, with the same sum."""
    rows, columns = len(weights), len(weights[0])
    out = [[weights[cell_at(y, height, rows)][cell_at(x, width, columns)] for x in range(width)] for y in range(height)]
    factor = sum(map(sum, weights)) / sum(map(sum, out))
    return [[value * factor for value in row] for row in out]


def pixels_of(values, region):
    """(value, inside) of all pixels."""
    pairs = zip(values, region, strict=True)
    return [(value, bool(inside)) for row, marks in pairs for value, inside in zip(row, marks, strict=True)]


def mass(values, region):
    return sum(value for value, inside in pixels_of(values, region) if inside)


def divergence(values, region):
    """Jensen-Shannon, in bits, by its definition."""
    pixels = pixels_of(values, region)
    total, count = sum(value for value, _ in pixels), sum(inside for _, inside in pixels)
    bits = 0.0
    for value, inside in pixels:
        p, q = value / total, inside / count
        for part in (p, q):
            if part > 0:
                bits += part * math.log2(2 * part / (p + q)) / 2
    return bits


def entropy(values):
    """In bits, less that of the uniform distribution."""
    flat = [value for row in values for value in row]
    total = sum(flat)
    return -sum(v / total * math.log2(v / total) for v in flat if v > 0) - math.log2(len(flat))


def focus(values):
    """The smallest share of the pixels that holds nine tenths."""
    flat = sorted((value for row in values for value in row), reverse=True)
    held, count = 0.0, 0
    while held < 0.9 * sum(flat) - 1e-9:
        held += flat[count]
        count += 1
    return count / len(flat)


def support(values):
    flat = [value for row in values for value in row]
    return sum(value > 0 for value in flat) / len(flat)


def pointing(values, region, cells, tolerance):
    """The share of the highest pixels whose point is near the region; those in one cell have one, their middle."""
    height, width = len(values), len(values[0])
    top = max(map(max, values))
    points = {}
    for y in range(height):
        for x in range(width):
            if values[y][x] >= top * (1 - 1e-6):
                cell = cell_at(y, height, cells[0]), cell_at(x, width, cells[1])
                points.setdefault(cell, []).append((y + 0.5, x + 0.5))
    hits = total = 0
    for pixels in points.values():
        y, x = (sum(axis) / len(pixels) for axis in zip(*pixels, strict=True))
        total += len(pixels)
        hits += len(pixels) * _near(y, x, region, tolerance)
    return hits / total


def _near(y, x, region, tolerance):
    height, width = len(region), len(region[0])
    for row in range(height):
        for column in range(width):
            if region[row][column]:
                dy = max(0, row - y, y - row - 1) / height
                dx = max(0, column - x, x - column - 1) / width
                if dy * dy + dx * dx <= tolerance * tolerance:
                    return True
    return False
