"""How good an attention is, measured against the region that the answer rests on.

Legend: B batch, H x W pixels of a map, h x w cells.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate, max_pool2d

from regard import _check
from regard.continuous import Density, Mixture

POINTING_TOLERANCE = 0.05  # of the picture's side: how far from the region the highest point may lie
_STRONG = 0.25  # a mode is at least a quarter as high as the highest


@dataclass(frozen=True)
class AttentionQuality:
    """Measures of a batch of attention maps, each (B,); those against a region are NaN where there is none.

    mass       attention inside the region; chance is `area`
    pointing   1 where the highest point lies in the region, or within a twentieth of the side of it
    divergence Jensen-Shannon divergence from the region's uniform distribution, in bits: 0 the same, 1 disjoint
    rank       Spearman's correlation with the region's share of each cell (the protocol of VQA-HAT)
    entropy    in bits, from the uniform distribution: 0 is uniform, negative is concentrated
    support    share of the picture with any attention
    focus      the smallest share of the picture that holds nine tenths of the attention
    modes      local maxima on the cells, at least a quarter as high as the highest
    area       share of the picture that the region takes
    """

    mass: Tensor
    pointing: Tensor
    divergence: Tensor
    rank: Tensor
    entropy: Tensor
    support: Tensor
    focus: Tensor
    modes: Tensor
    area: Tensor

    def mean(self, chosen: Tensor | None = None) -> dict[str, float]:
        """The mean of each measure, NaN left out; `chosen` (B,) is a boolean mask of examples, default all."""
        measures = {f.name: getattr(self, f.name) for f in fields(self)}
        if chosen is not None:
            measures = {name: values[chosen] for name, values in measures.items()}
        return {name: float(values.nanmean()) for name, values in measures.items()}


def concatenate(parts: list[AttentionQuality]) -> AttentionQuality:
    """The measures of several batches as one."""
    return AttentionQuality(**{name: torch.cat([getattr(part, name) for part in parts]) for name in asdict(parts[0])})


def attention_map(weights: Tensor, density: Density | None, size: tuple[int, int]) -> Tensor:
    """The attention on each pixel (B, H, W), as mass.

    Without a density, the weights of the cells (B, h, w), spread evenly over each cell. With one, its value at the
    centre of each pixel times the pixel's area; what lies outside the picture is not counted, so it may sum to less
    than one.

    >>> attention_map(torch.tensor([[[1.0, 0.0]]]), None, (2, 4))[0].tolist()
    [[0.25, 0.25, 0.0, 0.0], [0.25, 0.25, 0.0, 0.0]]
    """
    _check.floating("weights", weights, min_dims=3)
    height, width = size
    if density is None:
        spread = interpolate(weights.float().unsqueeze(1), size, mode="nearest-exact").squeeze(1)
        # Where cells do not divide the pixels some get one pixel more: the sum is restored.
        total = spread.sum((1, 2), keepdim=True).clamp_min(torch.finfo(spread.dtype).tiny)
        return spread * weights.float().sum((1, 2)).view(-1, 1, 1) / total
    y, x = ((torch.arange(n, device=weights.device) + 0.5) / n for n in size)
    points = torch.cartesian_prod(y, x).flip(-1)
    with torch.no_grad():
        return density.pdf(points.float()).float().reshape(-1, height, width) / (height * width)


def attention_quality(maps: Tensor, regions: Tensor, cells: tuple[int, int]) -> AttentionQuality:
    """Compare attention maps (B, H, W) with regions (B, H, W), boolean, or reference maps >= 0 of the same size.

    A region that is empty gives NaN where a measure needs it. `cells` is the grid for ranks and modes.

    >>> maps = torch.tensor([[[0.5, 0.5], [0.0, 0.0]]])
    >>> quality = attention_quality(maps, torch.tensor([[[True, False], [False, False]]]), (2, 2))
    >>> float(quality.mass), float(quality.pointing), float(quality.area), float(quality.entropy)
    (0.5, 1.0, 0.25, -1.0)
    """
    if maps.shape != regions.shape or maps.dim() != 3:
        _check.complain("regions", f"shape {tuple(regions.shape)}", f"that of maps, {tuple(maps.shape)}", "Resize.")
    flat = maps.flatten(1).double()
    p = flat / flat.sum(-1, keepdim=True).clamp_min(1e-300)
    reference = regions.flatten(1).double()
    known = reference.sum(-1) > 0
    inside = reference > 0
    q = reference / reference.sum(-1, keepdim=True).clamp_min(1e-300)
    pixels = flat.shape[-1]

    def where_known(values: Tensor) -> Tensor:
        return torch.where(known, values.double(), torch.nan)

    grids = adaptive_avg_pool2d(maps.double().unsqueeze(1), cells).squeeze(1)
    shares = adaptive_avg_pool2d(regions.double().unsqueeze(1), cells)
    return AttentionQuality(
        mass=where_known((flat * inside).sum(-1)),
        pointing=where_known(_pointing(maps, inside.reshape(maps.shape))),
        divergence=where_known(_divergence(p, q)),
        rank=where_known(_spearman(grids.flatten(1), shares.flatten(1))),
        entropy=torch.special.entr(p).sum(-1) / math.log(2) - math.log2(pixels),
        support=(flat > 0).double().mean(-1),
        focus=_focus(maps.flatten(1)),
        modes=count_modes(grids),
        area=where_known(inside.double().mean(-1)),
    )


def half_area(maps: Tensor) -> Tensor:
    """The smallest share of the picture that holds half of the attention in it: (B,), at most 0.5, for maps (B, H, W).

    Exact for maps that are constant on cells, if the cells are the entries: of the last entry that is needed only the
    part that is needed counts. Negative entries count as zero. A map without attention has 0.

    >>> half_area(torch.tensor([[[0.25, 0.25], [0.25, 0.25]], [[1.0, 0.0], [0.0, 0.0]], [[0.4, 0.2], [0.2, 0.2]]]))
    tensor([0.5000, 0.1250, 0.3750], dtype=torch.float64)
    """
    entries = maps.flatten(1).double().clamp_min(0).sort(-1, descending=True).values
    before = entries.cumsum(-1) - entries
    missing = (entries.sum(-1, keepdim=True) / 2 - before).clamp_min(0)
    parts = torch.where(entries > 0, missing / entries.clamp_min(1e-300), 0.0).clamp_max(1)
    return parts.sum(-1) / entries.shape[-1]


def count_modes(grids: Tensor) -> Tensor:
    """Local maxima of maps on cells (B, h, w), at least a quarter as high as the highest: (B,).

    >>> count_modes(torch.tensor([[[0.5, 0.0, 0.3], [0.0, 0.0, 0.0], [0.2, 0.0, 0.0]]]))
    tensor([3.], dtype=torch.float64)
    """
    x = grids.double().unsqueeze(1)
    # A plateau counts once: each of its cells is lowered a little more than the one before.
    step = torch.arange(x[0].numel(), device=x.device, dtype=x.dtype).reshape(x[0].shape)
    top = x.amax((-2, -1), keepdim=True)
    x = x - 1e-9 * top * step
    peaks = (x == max_pool2d(x, 3, 1, 1)) & (x >= _STRONG * top) & (top > 0)
    return peaks.sum((1, 2, 3)).double()


def mixture_modes(density: Density | None) -> Tensor | None:
    """The number of components with positive weight in each example; None unless the density is a mixture."""
    return density.components if isinstance(density, Mixture) else None


def _pointing(maps: Tensor, inside: Tensor) -> Tensor:
    """1 where the highest point lies in the region or near it, else 0; of a plateau, such as a cell, its middle."""
    batch, height, width = maps.shape
    highest = maps >= maps.amax((1, 2), keepdim=True) * (1 - 1e-6)
    y = (torch.arange(height, device=maps.device) + 0.5).view(1, -1, 1) / height
    x = (torch.arange(width, device=maps.device) + 0.5).view(1, 1, -1) / width
    count = highest.sum((1, 2)).clamp_min(1)
    cy, cx = ((highest * axis).sum((1, 2)) / count for axis in (y, x))
    # From the point to the nearest edge of each pixel.
    dy = ((y - cy.view(-1, 1, 1)).abs() - 0.5 / height).clamp_min(0)
    dx = ((x - cx.view(-1, 1, 1)).abs() - 0.5 / width).clamp_min(0)
    distance = (dy.square() + dx.square()).expand(batch, height, width)
    nearest = distance.masked_fill(~inside, torch.inf).amin((1, 2))
    return torch.where(nearest <= POINTING_TOLERANCE**2, 1.0, 0.0)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence along the last axis, in bits."""
    middle = (p + q) / 2
    entropy = torch.special.entr
    nats: Tensor = entropy(middle).sum(-1) - (entropy(p).sum(-1) + entropy(q).sum(-1)) / 2
    return (nats / math.log(2)).clamp(0, 1)


def _spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's correlation along the last axis; 0 if a row is constant."""
    a, b = (_ranks(x) - (x.shape[-1] - 1) / 2 for x in (a, b))
    scale = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return torch.where(scale > 0, (a * b).sum(-1) / scale.clamp_min(1e-300), 0.0)


def _ranks(x: Tensor) -> Tensor:
    """Ranks along the last axis, from 0; equal values share the mean of their ranks."""
    ordered = x.sort(-1).values.contiguous()
    x = x.contiguous()
    low, high = (torch.searchsorted(ordered, x, side=side) for side in ("left", "right"))
    return (low + high - 1).double() / 2


def _focus(flat: Tensor) -> Tensor:
    """The smallest share of the entries of a row that holds nine tenths of its sum."""
    mass = flat.sort(-1, descending=True).values.double().cumsum(-1)
    enough = (0.9 - 1e-12) * mass[:, -1:]
    return ((mass < enough).sum(-1) + 1).clamp_max(flat.shape[-1]).double() / flat.shape[-1]
