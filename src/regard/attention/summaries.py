"""What an attention does, without its weights in memory: entropy, support, largest weights, mass by key and region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from regard import _check
from regard._repr import shown
from regard.affinity import Affinity, Dot
from regard.attention.arguments import Causal, Map
from regard.attention.lazy import LazyWeights, places_of
from regard.attention.place import Place
from regard.attention.query_blocks import BUDGET
from regard.attention.softmax_blocks import SoftmaxBlock
from regard.maps.entmax import softmax

#: What `summarize` computes unless told otherwise.
USUAL = ("entropy", "support", "received")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionSummary:
    """What is known of the weights (..., Lq, Lk) of one attention (docs/math.md, 4.10 to 4.12); None if not wanted.

    - `entropy`: (..., Lq), of a query's weights, in nats; weights that do not sum to one are divided by their sum.
    - `support`: (..., Lq), the number of keys with a weight other than zero.
    - `received`: (..., Lk), the mass of each key: its weights summed over all queries.
    - `top_weights`, `top_places`: (..., Lq, n), the largest weights of each query, the largest first, and their keys;
      -1 where the weight is zero.
    - `regions`: (..., Lq, M), the mass of each query in each region.
    - `rows`: (..., R, Lk), the weights of chosen queries whole.

    >>> import regard
    >>> summary = regard.summarize(torch.zeros(1, 4), torch.zeros(5, 4), top=1)
    >>> round(float(summary.effective), 4)
    5.0
    >>> summary
    AttentionSummary(entropy=(1,), support=(1,), received=(5,), top_weights=(1, 1), top_places=(1, 1))
    """

    entropy: Tensor | None = None
    support: Tensor | None = None
    received: Tensor | None = None
    top_weights: Tensor | None = None
    top_places: Tensor | None = None
    regions: Tensor | None = None
    rows: Tensor | None = None

    @property
    def effective(self) -> Tensor:
        """The effective number of keys, e to the entropy (7.2.1): (..., Lq); zero for a query that sees no key."""
        if self.entropy is None or self.support is None:
            _check.complain("want", "a summary without them", "'entropy' and 'support'", "Want both.")
        return torch.where(self.support > 0, self.entropy.exp(), 0.0)

    def __repr__(self) -> str:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return shown(self, {name: x for name, x in parts.items() if x is not None})


def summarize(
    q: Tensor,
    k: Tensor,
    affinity: Affinity = Dot(),  # noqa: B008  (immutable)
    map: Map = softmax,
    mask: Tensor | None = None,
    *,
    causal: Causal = False,
    bias: Tensor | None = None,
    sink: float | Tensor | None = None,
    enable_gqa: bool = False,
    want: Sequence[str] = USUAL,
    top: int = 0,
    regions: Tensor | None = None,
    rows: Sequence[int] | Tensor | None = None,
) -> AttentionSummary:
    """Summaries of the weights of an attention (docs/math.md, 4.10 to 4.12), exact, in O(Lq + Lk) memory.

    - `q`, `k`, `affinity`, `map`, `mask`, `causal`, `bias`, `sink`, `enable_gqa`: as in `attend`; the sink is no key.
    - `want`: any of "entropy", "support" and "received"; default all three.
    - `top`: how many of the largest weights of each query; default 0.
    - `regions`: boolean or floating-point, (..., M, Lk), True or the share of each key in each of M regions; the
      leading dimensions broadcast; default None.
    - `rows`: places of queries (R,) whose weights are wanted whole; -1 is the last; default None.

    Shapes of the results are those of `AttentionSummary`, in the dtype of `q` or float32 for half precision. All but
    the support and the places are differentiable in q, k, the bias and the parameters of the affinity and the map:
    blocks of queries are computed again for the gradient. A query with no key left has an entropy and a support of
    zero. The entropy of negative weights (those of `mean`) is an error. Of equal weights any may be among the largest.

    >>> q, k = torch.randn(2, 6, 4), torch.randn(2, 9, 4)
    >>> left = torch.arange(9) < 4
    >>> summary = summarize(q, k, map="sparsemax", top=2, regions=torch.stack([left, ~left]))
    >>> summary.entropy.shape, summary.top_places.shape, bool((summary.regions.sum(-1) - 1 < 1e-6).all())
    (torch.Size([2, 6]), torch.Size([2, 6, 2]), True)
    """
    lazy = LazyWeights(q, k, affinity, map, mask, causal=causal, bias=bias, sink=sink, enable_gqa=enable_gqa)
    return summary_of(lazy, want=want, top=top, regions=regions, rows=rows)


def summary_of(
    lazy: LazyWeights,
    *,
    want: Sequence[str] = USUAL,
    top: int = 0,
    regions: Tensor | None = None,
    rows: Sequence[int] | Tensor | None = None,
) -> AttentionSummary:
    """The summary of weights that are computed in blocks; arguments as in `summarize`."""
    keys = lazy.shape[-1]
    wanted = _wanted(want, top, keys, regions, lazy.shape[:-2])
    whole = None if rows is None else lazy.rows(rows)
    if not wanted.any:
        return AttentionSummary(rows=whole)
    regions = None if regions is None else regions.to(lazy.device, lazy.dtype)
    regions = None if regions is None else regions.expand(*lazy.shape[:-2], *regions.shape[-2:])
    computed = lazy.summaries_by_kernel(wanted.names, top, regions)
    if computed is not None:
        return _summary(computed, whole)
    results = _allocated(lazy, wanted)

    def seen(place: Place) -> Tensor | None:
        return None if regions is None else regions[place.part][..., : place.keys]

    fast = lazy.softmax_blocks()
    if fast is None:
        blocks = lazy.blocks(lambda p, place: statistics_of(p, wanted, seen(place)))
    else:
        blocks = ((block.place, _of_softmax(block, wanted, seen(block.place))) for block in fast)
    for place, values in blocks:
        for name, value in zip(wanted.names, values, strict=True):
            if name == "received":
                results[name][place.part][..., : place.keys].add_(value)
            else:
                results[name][place.part][..., place.queries, :] = value
    return _summary(results, whole)


def summary_of_weights(
    p: Tensor,
    *,
    want: Sequence[str] = USUAL,
    top: int = 0,
    regions: Tensor | None = None,
    rows: Sequence[int] | Tensor | None = None,
) -> AttentionSummary:
    """The summary of weights (..., Lq, Lk) that are in memory; arguments as in `summarize`."""
    wanted = _wanted(want, top, p.shape[-1], regions, p.shape[:-2])
    regions = None if regions is None else regions.to(p.device, torch.promote_types(p.dtype, torch.float32))
    size = max(1, BUDGET * p.shape[-2] // max(1, p.numel()))
    made: dict[str, list[Tensor]] = {name: [] for name in wanted.names}
    for block in p.split(size, -2):
        block = block.float() if block.dtype in (torch.float16, torch.bfloat16) else block
        for name, value in zip(wanted.names, statistics_of(block, wanted, regions), strict=True):
            made[name].append(value)
    results = {
        name: torch.stack(parts).sum(0) if name == "received" else torch.cat(parts, -2) for name, parts in made.items()
    }
    return _summary(results, None if rows is None else p[..., places_of(rows, p.shape[-2]).to(p.device), :])


@dataclass(frozen=True)
class Wanted:
    """Which summaries are wanted: names among `USUAL`, how many of the largest weights, how many regions."""

    names: tuple[str, ...]
    top: int = 0
    regions: int = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.names)


def statistics_of(p: Tensor, wanted: Wanted, regions: Tensor | None) -> tuple[Tensor, ...]:
    """The wanted statistics of a block of weights, in the order of their names.

    `p`: (..., rows, keys).
    `wanted`: what to compute.
    `regions`: (..., M, keys), or None.
    """
    made: dict[str, Tensor] = {}
    if "entropy" in wanted.names:
        made["entropy"] = _entropy(p).unsqueeze(-1)
    if "support" in wanted.names:
        signs = p.detach().sign()  # its square sums faster than a count of what is not zero, exactly up to 2^24 keys
        made["support"] = torch.linalg.vecdot(signs, signs).long().unsqueeze(-1)
    if "received" in wanted.names:
        made["received"] = p.sum(-2)
    if wanted.top:
        missing = wanted.top - p.shape[-1]  # a causal block may see fewer keys
        largest = (torch.nn.functional.pad(p, (0, missing)) if missing > 0 else p).topk(wanted.top, -1)
        made["top_weights"] = largest.values
        made["top_places"] = torch.where(largest.values > 0, largest.indices, -1)
    if regions is not None:
        made["regions"] = p @ regions.mT
    return tuple(made[name] for name in wanted.names)


def _of_softmax(block: SoftmaxBlock, wanted: Wanted, regions: Tensor | None) -> tuple[Tensor, ...]:
    """The same of a block with its scores s: ln p is s - max s + ln max p, a sum of terms of one sign, without log."""
    p, s = block.weights, block.scores
    made: dict[str, Tensor] = {}
    if "entropy" in wanted.names:
        s.sub_(s.amax(-1, keepdim=True))
        made["entropy"] = (-p.amax(-1).log() - torch.linalg.vecdot(p, s)).unsqueeze(-1)
    if "support" in wanted.names and block.positive:
        made["support"] = torch.full((len(p), 1), p.shape[-1], dtype=torch.int64, device=p.device)
    rest = replace(wanted, names=tuple(name for name in wanted.names if name not in made))
    made |= dict(zip(rest.names, statistics_of(p, rest, regions), strict=True))
    return tuple(made[name] for name in wanted.names)


def _entropy(p: Tensor) -> Tensor:
    """Shannon entropy of weights along the last axis, divided by their sum; 0 ln 0 = 0, with finite derivatives."""
    if _check.values_checked(p) and p.numel() and float(p.detach().amin()) < 0:
        remedy = 'Those of the mean, and of densities on a grid, may be: leave "entropy" out of want.'
        _check.complain("map", f"a negative weight, {float(p.min())}", "weights >= 0 for an entropy", remedy)
    logs = p.clamp(min=torch.finfo(p.dtype).tiny)
    logs = logs.log() if torch.is_grad_enabled() else logs.log_()
    total = p.sum(-1)
    alive = total > 0
    total = torch.where(alive, total, 1.0)
    return torch.where(alive, total.log() - torch.linalg.vecdot(p, logs) / total, 0.0)


def _wanted(want: Sequence[str], top: int, keys: int, regions: Tensor | None, batch: torch.Size) -> Wanted:
    if isinstance(want, str) or not set(want) <= set(USUAL):
        _check.complain("want", repr(want), f"some of {', '.join(map(repr, USUAL))}", "Others have arguments: top, ...")
    names = [name for name in USUAL if name in want]
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= keys:
        _check.complain("top", repr(top), f"a number of keys from 0 to {keys}", "There are not more weights.")
    names += ["top_weights", "top_places"] if top else []
    if regions is None:
        return Wanted(tuple(names), top)
    if not isinstance(regions, Tensor) or regions.dim() < 2:
        _check.complain("regions", type(regions).__name__, "a tensor (..., M, Lk)", "Stack masks of keys.", TypeError)
    _check.last_axis("regions", regions, keys, "one for each key")
    if regions.is_floating_point():
        _check.finite("regions", regions)
    shape = torch.Size((*batch, *regions.shape[-2:]))
    _check.broadcasts("regions", regions, shape, "the leading dimensions of the weights")
    return Wanted((*names, "regions"), top, regions.shape[-2])


def _allocated(lazy: LazyWeights, wanted: Wanted) -> dict[str, Tensor]:
    """Zeros for the results: small results between large blocks would fragment the heap."""
    *batch, queries, keys = lazy.shape
    widths = {
        "entropy": 1,
        "support": 1,
        "top_weights": wanted.top,
        "top_places": wanted.top,
        "regions": wanted.regions,
    }
    made = {}
    for name in wanted.names:
        shape = (*batch, keys) if name == "received" else (*batch, queries, widths[name])
        dtype = torch.int64 if name in ("support", "top_places") else lazy.dtype
        made[name] = torch.zeros(shape, dtype=dtype, device=lazy.device)
    return made


def _summary(results: dict[str, Tensor], rows: Tensor | None) -> AttentionSummary:
    columns = {name: x.squeeze(-1) if name in ("entropy", "support") else x for name, x in results.items()}
    return AttentionSummary(**columns, rows=rows)
