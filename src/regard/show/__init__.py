"""Pictures of attention, with matplotlib: the extra `show`.

    show.grid(image, weights)                discrete attention, cell by cell
    show.density(image, density)             continuous attention, as contours
    show.compare(image, {"a": weights, "b": density})
    show.weights_1d(weights, tokens)         sequences
    show.transport(plan)                     transport plans
    show.prototypes(crops, scores)           the crops nearest to each prototype

Every function returns the figure and takes an `ax` to draw into. Lightness alone carries the meaning, with a
perceptually uniform colour map: the pictures can be read in grey print and by the colour-blind.
"""

from regard.show._compare import compare, png
from regard.show._densities import density
from regard.show._grids import grid
from regard.show._lines import weights_1d
from regard.show._plans import transport
from regard.show._prototypes import prototypes

__all__ = ["compare", "density", "grid", "png", "prototypes", "transport", "weights_1d"]
