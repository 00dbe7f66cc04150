"""Non-local blocks: every position of a feature map looks at every other one.

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
        """Hold the projections theta, phi and g, the output projection, and its norm."""
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
        """(B, C, *space) to the same."""
        self._check_input(x)
        q, k, v, affinity = self._queries_keys_values(x)
        # Autocast would turn the float32 sums of attend back into half precision.
        with without_autocast(x):
            y = attend(q, k, v, affinity, self.map)
        if self._values_later:
            y = self.g(y)
        # Written channels first, as the norm wants it: no copy of the map is made on the way.
        weight, bias = self.out.weight.expand(len(x), -1, -1), self.out.bias.unsqueeze(-1)
        z: Tensor = torch.baddbmm(bias, weight, y.mT).unflatten(-1, x.shape[2:])
        if self.norm is not None:
            z = self.norm(z)
        if isinstance(self.norm, type(self)._batch_norm) and z.dtype == x.dtype:
            return z.add_(x)  # its backward pass does not look at its output
        return x + z

    def weights(self, x: Tensor) -> Tensor:
        """The weights of every position over all keys, (B, N, M): for pictures, as they need N x M memory."""
        self._check_input(x)
        q, k, _, affinity = self._queries_keys_values(x)
        return attention_weights(q, k, affinity, self.map)

    def explain(self, x: Tensor) -> Plan:
        """Which exact algorithm this block takes for such an input: see `regard.explain_attend`."""
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
        here = x.flatten(2).mT
        there = self._pooled(here, x) if self.pool == "before" else here
        v = there if self._values_later else _project(there, self.g)
        affinity: Affinity = Dot(self.scale)
        if self.affinity == "gaussian":
            q = here.contiguous()
            k = q if there is here else there.contiguous()
            v = k if self._values_later else v
        elif self.affinity == "concatenation":
            # Only w.theta(x) and w.phi(x) matter, one number a position, so the projections are never carried out
            # (docs/math.md, 7.3). Pooling after phi is not linear: there phi is needed.
            w_q, w_k = self.w.chunk(2)
            one = torch.ones(1, device=x.device)
            q, w_q = _one_number(here, self.theta, w_q), one
            if self.pool == "before" or max(self.subsample) == 1:
                k, w_k = _one_number(there, self.phi, w_k), one
            else:
                k = _project(there, self.phi)
            affinity = Concatenation(w_q, w_k)
        else:
            q, k = _project(here, self.theta), _project(there, self.phi)
        if self.pool == "after":
            k, v = self._pooled(k, x), self._pooled(v, x)
        return q.to(v.dtype), k.to(v.dtype), v, affinity

    @property
    def _values_later(self) -> bool:
        """Whether g is applied to the context in place of the values, which is the same where weights sum to one. The
        fused kernel wants values as wide as keys, so that narrower ones would be copied into padding."""
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
        each = subsample if isinstance(subsample, tuple) else (subsample,) * self.dimensions
        if len(each) != self.dimensions:
            expected = f"a number, or {self.dimensions} of them"
            _check.complain("subsample", subsample, expected, "One for each axis of the map.")
        return tuple(_check.count("subsample", n) for n in each)

    def _check_input(self, x: Tensor) -> None:
        _check.floating("x", x)
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.channels:
            expected = f"(batch, {self.channels}, {', '.join('tyx'[3 - self.dimensions :])})"
            _check.complain("x", f"shape {tuple(x.shape)}", expected, f"{type(self).__name__} wants channels second.")
        if any(size < step for size, step in zip(x.shape[2:], self.subsample, strict=True)):
            expected = f"a map of at least {self.subsample}, one cell of subsample"
            _check.complain("x", f"a map of {tuple(x.shape[2:])}", expected, "Sub-sample less.")


def _start_small(block: nn.Module, std: float) -> None:
    """Projections from a narrow normal distribution, without biases, as in the authors' code: all scores are nearly
    equal then, and every position gets a gradient."""
    for layer in block.children():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)


def _project(tokens: Tensor, projection: nn.Linear) -> Tensor:
    """projection(tokens), (B, N, c), from a map that lies channels first, which a linear layer would copy."""
    return torch.baddbmm(projection.bias, tokens, projection.weight.mT.expand(len(tokens), -1, -1))


def _one_number(tokens: Tensor, projection: nn.Linear, w: Tensor) -> Tensor:
    """w.projection(tokens), (B, N, 1), without the projection."""
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

    `affinity`: "gaussian" (of the features themselves), "embedded_gaussian", "dot_product" or "concatenation" (of
    their projections to `inner` channels, half of them unless given). The Gaussian pair goes with softmax, the others
    with division by the number of positions; `map` replaces that by any map of regard. `scale` multiplies the inner
    products: a number, or None for 1/sqrt(width). Unless given it is that of the authors' code and of mmcv, None for
    the embedded Gaussian and 1 for the others; the paper's own is 1 everywhere. `subsample` keeps the largest value of
    each cell of that size for keys and values, one number or one per axis, `pool="after"` their projections, as the
    paper says, or "before" them, as its authors' code does. `norm` makes the output norm from a number of channels, or
    is None.

    Projections start from a normal distribution of standard deviation `std` without biases, as in the authors' code, so
    that at first every position looks at all others alike: with 512 channels and 196 positions at 195 of them, where
    the defaults of `nn.Linear` and a scale of 1 leave 4. With `zero_init` the last weights are zero, so that the block
    starts as the identity: whatever the affinity does cannot be seen in the output before a training step.

    Never more than O(N) memory with these four; concatenation takes O(N log N) time, the dot product O(N).
    Differentiable in the input and all parameters.

    >>> block = NonLocal2d(16, "concatenation", subsample=2)
    >>> x = torch.randn(2, 16, 8, 8)
    >>> torch.equal(block(x), x)
    True
    >>> print(block.explain(x))
    sorted: sort the keys once, prefix sums, one look-up a query; time O(L log L + L dv), memory O(L dv)
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
