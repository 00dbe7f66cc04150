"""How good an attention is, measured against the region that the answer rests on.

Legend: B batch, H x W pixels of a map, h x w cells.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from regard import _check
from regard.continuous import Density, Mixture
from regard.continuous.members import batch_part
from regard.vqa.measures import divergence, focus, p_log_p, spearman, total
from regard.vqa.pointing import cell_of, pointing_of_cells, pointing_of_pixels

_PIXELS = 1 << 18  # of maps that are measured at a time: they stay in the processor's cache
_STRONG = 0.25  # a mode is at least a quarter as high as the highest


@dataclass(frozen=True)
class AttentionQuality:
    """Measures of a batch of attention maps, each (B,); those against a region are NaN where there is none.

    mass       attention inside the region; chance is `area`
    pointing   1 where the highest point lies in the region, or within a twentieth of the side of it; where several
               cells are equally high, the share of them that does
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
        values, _ = _spread(weights.float(), size)
        rows, columns = (cell_of(n, c).to(weights.device) for n, c in zip(size, weights.shape[1:], strict=True))
        return values[:, rows][:, :, columns]
    with torch.no_grad():
        return density.pdf_on_grid(height, width).float().reshape(-1, height, width) / (height * width)


def quality_of(
    weights: Tensor, density: Density | None, regions: Tensor, cells: tuple[int, int] | None = None
) -> AttentionQuality:
    """The quality of what an output attention looked at, as of `attention_map`, in little memory.

    `weights`: of the cells, (B, h, w).
    `density`: of a continuous attention, a batch of B; None for a discrete one.
    `regions`: boolean (B, H, W).
    `cells`: the grid for ranks and modes; default that of the weights.

    >>> region = torch.tensor([[[True, False], [False, False]]])
    >>> float(quality_of(torch.tensor([[[0.5, 0.5], [0.0, 0.0]]]), None, region).pointing)  # two cells are highest
    0.5
    """
    cells = cells or (weights.shape[1], weights.shape[2])
    if density is None:
        return _quality_of_cells(weights.float().cpu(), regions.cpu())
    size = (regions.shape[1], regions.shape[2])
    step = max(1, _PIXELS // (size[0] * size[1]))
    parts = [slice(start, start + step) for start in range(0, len(regions), step)]
    return concatenate(
        [
            attention_quality(attention_map(weights[part], batch_part(density, part), size), regions[part], cells)
            for part in parts
        ]
    )


def attention_quality(maps: Tensor, regions: Tensor, cells: tuple[int, int]) -> AttentionQuality:
    """Compare attention maps (B, H, W) with regions (B, H, W), boolean, or reference maps >= 0 of the same size.

    A region that is empty gives NaN where a measure needs it. `cells` is the grid for ranks and modes.

    >>> maps = torch.tensor([[[0.5, 0.5], [0.0, 0.0]]])
    >>> quality = attention_quality(maps, torch.tensor([[[True, False], [False, False]]]), (2, 2))
    >>> float(quality.mass), float(quality.pointing), float(quality.area), round(float(quality.entropy), 6)
    (0.5, 0.5, 0.25, -1.0)
    """
    if maps.shape != regions.shape or maps.dim() != 3:
        _check.complain("regions", f"shape {tuple(regions.shape)}", f"that of maps, {tuple(maps.shape)}", "Resize.")
    maps, regions = maps.float().cpu(), regions.cpu()
    whole = regions.dtype == torch.bool
    reference = regions.float()
    inside = regions if whole else regions > 0
    shares, grids = (_averages(x, cells) for x in (reference, maps))
    pointing = pointing_of_pixels(maps, inside, cells)
    region = (reference if whole else inside.float()).flatten(1)
    return _measured(maps.flatten(1), None, region, None if whole else reference.flatten(1), pointing, grids, shares)


def _quality_of_cells(weights: Tensor, regions: Tensor) -> AttentionQuality:
    """As `attention_quality` of `attention_map`, from the weights of the cells and the region's pixels in each."""
    size = (regions.shape[1], regions.shape[2])
    values, pixels = _spread(weights, size)
    rows, columns = (
        torch.nn.functional.one_hot(cell_of(n, c), c).float() for n, c in zip(size, weights.shape[1:], strict=True)
    )
    reference = regions.float()
    inside = rows.T @ (reference @ columns)
    shares = _averages(reference, (weights.shape[1], weights.shape[2]))
    pointing = pointing_of_cells(weights, regions)
    return _measured(values.flatten(1), pixels.flatten(), inside.flatten(1), None, pointing, weights, shares)


def _spread(weights: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The mass of a pixel of each cell (B, h, w), and the number of pixels of each (h, w)."""
    counts = [cell_of(n, c).bincount(minlength=c).float() for n, c in zip(size, weights.shape[1:], strict=True)]
    pixels = (counts[0][:, None] * counts[1]).to(weights.device)
    # Where cells do not divide the pixels some have one pixel more: the sum is restored.
    total = (weights * pixels).sum((1, 2), keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return weights * (weights.sum((1, 2), keepdim=True) / total), pixels


def _averages(maps: Tensor, cells: tuple[int, int]) -> Tensor:
    """The mean of maps (B, H, W) over each cell (B, h, w), whole pixels that it touches, as `adaptive_avg_pool2d`."""
    means = []
    for pixels, count in zip(maps.shape[1:], cells, strict=True):
        at, cell = torch.arange(pixels), torch.arange(count)[:, None]
        touched = ((at >= cell * pixels // count) & (at < -(-(cell + 1) * pixels // count))).to(maps)
        means.append(touched / touched.sum(1, keepdim=True))
    return means[0] @ (maps @ means[1].T)


def _measured(
    values: Tensor,
    pixels: Tensor | None,
    inside: Tensor,
    reference: Tensor | None,
    pointing: Tensor,
    grids: Tensor,
    shares: Tensor,
) -> AttentionQuality:
    """All measures.

    `values`: (B, M), the mass of a pixel of each group of pixels that have the same.
    `pixels`: (M,), the pixels of a group; None if each is one.
    `inside`: (B, M), those in the region.
    `reference`: (B, M), a reference map; None for the region's uniform distribution.
    `pointing`: (B,).
    `grids`, `shares`: (B, h, w), the attention on cells, and the region's share of them.
    """
    size = values.shape[-1] if pixels is None else int(pixels.sum())
    tiny = torch.finfo(values.dtype).tiny
    sums = total(values, pixels).clamp_min(tiny)
    p = values / sums[:, None]
    count, mass = inside.sum(-1), (values * inside).sum(-1)
    q = 1 / count.clamp_min(1)[:, None]
    if reference is not None:
        q = reference / reference.sum(-1, keepdim=True).clamp_min(tiny)

    def where_known(measure: Tensor) -> Tensor:
        return torch.where(count > 0, measure.double(), torch.nan)

    return AttentionQuality(
        mass=where_known(mass),
        pointing=where_known(pointing),
        divergence=where_known(divergence(p, q, inside, (1 - mass / sums).clamp_min(0))),
        rank=where_known(spearman(grids.flatten(1), shares.flatten(1))),
        entropy=-total(p_log_p(p), pixels).double() / math.log(2) - math.log2(size),
        support=total((values > 0).to(values), pixels).double() / size,
        focus=focus(values, pixels) / size,
        modes=count_modes(grids),
        area=where_known(count / size),
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
