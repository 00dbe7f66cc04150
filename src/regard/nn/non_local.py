"""Non-local blocks: every position of a feature map attends to every other one.

Legend: B batch, C channels, c inner channels, N positions, M positions left after sub-sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import _check
from regard._torch import without_autocast
from regard.affinity import Affinity, Concatenation, Dot
from regard.attention.algorithm import Plan
from regard.attention.arguments import Map
from regard.attention.attend import attend, explain_attend
from regard.attention.weights import attention_weights
from regard.maps.entmax import softmax
from regard.maps.mean import mean

PairwiseName = Literal["gaussian", "embedded_gaussian", "dot_product", "concatenation"]
PAIRWISE_NAMES = ("gaussian", "embedded_gaussian", "dot_product", "concatenation")


class NonLocal(nn.Module):
    """What the blocks in one, two and three dimensions share; use `NonLocal1d`, `NonLocal2d` or `NonLocal3d`.

    z = x + norm(W_z y), with y the context of `attend` over all positions (docs/math.md, 7.1 and 7.2).
    """

    dimensions: ClassVar[int]
    _batch_norm: ClassVar[type[nn.Module]]

    def __init__(
        self,
        channels: int,
        affinity: PairwiseName = "embedded_gaussian",
        map: Map | None = None,
        *,
        inner: int | None = None,
        scale: float | Literal["published"] | None = "published",
        subsample: int | tuple[int, ...] = 1,
        pool: Literal["after", "before"] = "after",
        norm: Literal["batch"] | Callable[[int], nn.Module] | None = "batch",
        std: float = 0.01,
        zero_init: bool = True,
    ) -> None:
        """Create the projections theta, phi and g, the output projection, and its norm."""
        super().__init__()
        _check.count("channels", channels)
        _check.choice("affinity", affinity, PAIRWISE_NAMES)
        _check.choice("pool", pool, ("after", "before"))
        if scale == "published":
            scale = None if affinity == "embedded_gaussian" else 1.0
        if affinity == "concatenation" and scale != 1.0:
            _check.complain(
                "scale", scale, "1.0 with the concatenation affinity", "Its weight vector learns the scale."
            )
        self.channels, self.affinity, self.pool = channels, affinity, pool
        self.inner = max(1, channels // 2) if inner is None else _check.count("inner", inner)
        self.map = map if map is not None else softmax if "gaussian" in affinity else mean
        self.scale = scale if scale is None else _check.number("scale", scale)
        self.subsample = self._stride(subsample)
        if affinity != "gaussian":
            self.theta = nn.Linear(channels, self.inner)
            self.phi = nn.Linear(channels, self.inner)
        if affinity == "concatenation":
            bound = (2 * self.inner) ** -0.5
            self.w = nn.Parameter(torch.empty(2 * self.inner).uniform_(-bound, bound))
        self.g = nn.Linear(channels, self.inner)
        self.out = nn.Linear(self.inner, channels)
        self.norm = None if norm is None else (type(self)._batch_norm if norm == "batch" else norm)(channels)
        _start_small(self, _check.number("std", std, above=0, remedy="0.01 is the authors'."))
        if zero_init:
            self._start_as_identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *space) to the same shape."""
        self._check_input(x)
        q, k, v, affinity = self._queries_keys_values(x)
        # Autocast would compute the float32 sums of attend in half precision.
        with without_autocast(x):
            y = attend(q, k, v, affinity, self.map)
        if self._values_later:
            y = self.g(y)
        # Written channels first, the layout of the norm: the feature map is not copied.
        weight, bias = self.out.weight.expand(len(x), -1, -1), self.out.bias.unsqueeze(-1)
        z: Tensor = torch.baddbmm(bias, weight, y.mT).unflatten(-1, x.shape[2:])
        if self.norm is not None:
            z = self.norm(z)
        if isinstance(self.norm, type(self)._batch_norm) and z.dtype == x.dtype:
            return z.add_(x)  # in place: the backward pass of the norm does not use its output
        return x + z

    def weights(self, x: Tensor) -> Tensor:
        """The weights of every position over all keys, (B, N, M): for pictures; takes N x M memory."""
        self._check_input(x)
        q, k, _, affinity = self._queries_keys_values(x)
        return attention_weights(q, k, affinity, self.map)

    def explain(self, x: Tensor) -> Plan:
        """Which algorithm this block takes for an input like x: see `regard.explain_attend`."""
        self._check_input(x)
        q, k, v, affinity = self._queries_keys_values(x)
        return explain_attend(q, k, v, affinity, self.map)

    def extra_repr(self) -> str:
        """What the children do not show."""
        name = getattr(self.map, "__name__", repr(self.map))
        text = f"{self.channels}, affinity={self.affinity}, map={name}, inner={self.inner}"
        if self.scale != 1.0:
            text += f", scale={self.scale}"
        return text + (f", subsample={self.subsample}, pool={self.pool}" if max(self.subsample) > 1 else "")

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Affinity]:
        """Queries (B, N, e), keys (B, M, e), values (B, M, c), and the affinity that scores them."""
        tokens_q = x.flatten(2).mT
        tokens_k = self._pooled(tokens_q, x) if self.pool == "before" else tokens_q
        v = tokens_k if self._values_later else _project(tokens_k, self.g)
        affinity: Affinity = Dot(self.scale)
        if self.affinity == "gaussian":
            q = tokens_q.contiguous()
            k = q if tokens_k is tokens_q else tokens_k.contiguous()
            v = k if self._values_later else v
        elif self.affinity == "concatenation":
            # Only w.theta(x) and w.phi(x) matter, one number per position, so the projections are never computed
            # (docs/math.md, 7.3). Pooling after phi is not linear: it needs phi(x).
            w_q, w_k = self.w.chunk(2)
            one = torch.ones(1, device=x.device)
            q, w_q = _one_number(tokens_q, self.theta, w_q), one
            if self.pool == "before" or max(self.subsample) == 1:
                k, w_k = _one_number(tokens_k, self.phi, w_k), one
            else:
                k = _project(tokens_k, self.phi)
            affinity = Concatenation(w_q, w_k)
        else:
            q, k = _project(tokens_q, self.theta), _project(tokens_k, self.phi)
        if self.pool == "after":
            k, v = self._pooled(k, x), self._pooled(v, x)
        return q.to(v.dtype), k.to(v.dtype), v, affinity

    @property
    def _values_later(self) -> bool:
        """Whether g is applied to the context, not to the values: the same result where weights sum to one. The fused
        kernel needs values as wide as keys, and would copy narrower ones into padding."""
        linear = self.pool == "before" or max(self.subsample) == 1
        return linear and self.affinity == "gaussian" and self.map is softmax and self.inner < self.channels

    def _pooled(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Largest value of each channel in each cell: (B, N, e) to (B, M, e)."""
        if max(self.subsample) == 1:
            return tokens
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self.dimensions - 1]
        cells: Tensor = pool(tokens.mT.unflatten(-1, x.shape[2:]), self.subsample)
        return cells.flatten(2).mT

    def _start_as_identity(self) -> None:
        last = self.out if self.norm is None else self.norm
        weight, bias = getattr(last, "weight", None), getattr(last, "bias", None)
        if not isinstance(weight, Tensor):
            _check.complain("norm", type(last).__name__, "a norm with a weight", "Pass zero_init=False, or norm=None.")
        nn.init.zeros_(weight)
        if isinstance(bias, Tensor):
            nn.init.zeros_(bias)

    def _stride(self, subsample: int | tuple[int, ...]) -> tuple[int, ...]:
        strides = subsample if isinstance(subsample, tuple) else (subsample,) * self.dimensions
        if len(strides) != self.dimensions:
            expected = f"a number, or {self.dimensions} of them"
            _check.complain("subsample", subsample, expected, "One for each axis of the map.")
        return tuple(_check.count("subsample", n) for n in strides)

    def _check_input(self, x: Tensor) -> None:
        _check.floating("x", x)
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.channels:
            expected = f"(batch, {self.channels}, {', '.join('tyx'[3 - self.dimensions :])})"
            _check.complain("x", f"shape {tuple(x.shape)}", expected, f"{type(self).__name__} wants channels second.")
        if any(size < step for size, step in zip(x.shape[2:], self.subsample, strict=True)):
            expected = f"a map of at least {self.subsample}, one cell of subsample"
            _check.complain("x", f"a map of {tuple(x.shape[2:])}", expected, "Sub-sample less.")


def _start_small(block: nn.Module, std: float) -> None:
    """Initialise projections from a narrow normal distribution and biases with zero, as in the authors' code: all
    scores are then nearly equal, and every position gets a gradient."""
    for layer in block.children():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)


def _project(tokens: Tensor, projection: nn.Linear) -> Tensor:
    """projection(tokens), (B, N, c), for tokens with channels first in memory, which a linear layer would copy."""
    return torch.baddbmm(projection.bias, tokens, projection.weight.mT.expand(len(tokens), -1, -1))


def _one_number(tokens: Tensor, projection: nn.Linear, w: Tensor) -> Tensor:
    """w.projection(tokens), (B, N, 1), without computing the projection."""
    weight, bias = (w @ projection.weight).unsqueeze(-1), w @ projection.bias
    return torch.baddbmm(bias, tokens, weight.expand(len(tokens), -1, -1))


class NonLocal1d(NonLocal):
    """Non-local block (7.1) on (B, C, length). See `NonLocal2d`.

    >>> NonLocal1d(8, "dot_product")(torch.randn(2, 8, 50)).shape
    torch.Size([2, 8, 50])
    """

    dimensions = 1
    _batch_norm = nn.BatchNorm1d


class NonLocal2d(NonLocal):
    """Non-local block on (B, C, height, width) (docs/math.md, 7.1 to 7.3).

    `channels`: C.
    `affinity`: "gaussian" (of the features themselves), "embedded_gaussian" (default), "dot_product" or "concatenation"
    (of their projections).
    `map`: any map of regard; default softmax for the two Gaussians, division by the number of positions for the others.
    `inner`: channels of the projections; default half of `channels`.
    `scale`: multiplies the inner products: a number, or None for 1/sqrt(width). Default "published", that of the
    authors' code and of mmcv: None for the embedded Gaussian and 1 for the others; in the paper it is 1 everywhere.
    `subsample`: max-pooling of keys and values in cells of this size, a number or one per axis; default 1.
    `pool`: whether it comes "after" their projections, as in the paper (default), or "before", as in its code.
    `norm`: the output norm: "batch" (default), a function from a number of channels to a module, or None.
    `std`: standard deviation of the initial projections, whose biases are zero, as in the authors' code; default 0.01.
    At first every position then attends to all others almost equally: with 512 channels and 196 positions to 195 of
    them (effective number), where the initialisation of `nn.Linear` and a scale of 1 leave 4.
    `zero_init`: the last weights start at zero, so that the block starts as the identity and the affinity changes its
    output only after a training step; default True.

    O(N) memory with these four affinities; concatenation takes O(N log N) time, the dot product O(N). Differentiable in
    the input and all parameters.

    >>> block = NonLocal2d(16, "concatenation", subsample=2)
    >>> x = torch.randn(2, 16, 8, 8)
    >>> torch.equal(block(x), x)
    True
    >>> print(block.explain(x))
    sorted: sort the keys once, prefix sums, one look-up per query; time O(L log L + L dv), memory O(L dv)
    """

    dimensions = 2
    _batch_norm = nn.BatchNorm2d


class NonLocal3d(NonLocal):
    """Non-local block (7.1) on (B, C, time, height, width). See `NonLocal2d`; the paper's `subsample` is (1, 2, 2).

    >>> NonLocal3d(8, "gaussian", subsample=(1, 2, 2))(torch.randn(2, 8, 3, 4, 4)).shape
    torch.Size([2, 8, 3, 4, 4])
    """

    dimensions = 3
    _batch_norm = nn.BatchNorm3d
