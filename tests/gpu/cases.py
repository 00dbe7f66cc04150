"""Calls of sparse attention that find faults, judged by the dense program in float64."""

import math

import torch

import regard
from regard import native
from regard.gpu import attention, kernels_for

CLOSE = {torch.float32: 6e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(lq, lk, d=16, dv=24, dtype=torch.float32, heads=2, seed=0):
    """Queries whose heads are not side by side in memory, keys whose features are not, and values."""
    q = (1.5 * numbers(1, lq, heads, d, seed=seed)).to(dtype).transpose(1, 2)
    k = numbers(1, heads, d, lk, seed=seed + 1, dtype=dtype).mT
    return q, k, numbers(1, heads, lk, dv, seed=seed + 2, dtype=dtype)


def clustered(length, d=16, groups=4, dtype=torch.float32):
    """Queries that look at the keys of their own stretch alone, and in the second head at those of another."""
    centres = 4 * torch.nn.functional.normalize(numbers(groups, d, seed=5), dim=-1)
    x = centres.repeat_interleave(length // groups, 0) + 0.1 * numbers(length, d, seed=6)
    q = torch.stack([x, x]).to(dtype)[None]
    k = torch.stack([x, x.roll(length // groups, 0)]).to(dtype)[None]
    return q, k, numbers(1, 2, length, d, seed=7, dtype=dtype)


def near_the_threshold(lk=96, d=16):
    """Every query has its largest score in the first tile, and one 0.85 of the reach below it in the last."""
    q, k = torch.zeros(1, 1, 33, d), torch.full((1, 1, lk, d), -2.0)
    q[..., 0], k[..., 0] = 1.0, -50.0
    k[..., 3, 0], k[..., lk - 2, 0] = 0.0, -0.85 * 2
    return q, k, numbers(1, 1, lk, d, seed=3)


def broad_and_narrow(d=16):
    """Half of the queries have weight for all keys of eight tiles, the others for one key; four tiles have none, but
    lie nearer to the top of the first than the others reach."""
    q, k = torch.zeros(1, 1, 16, d), torch.zeros(1, 1, 384, d)
    q[:, :, ::2, 0], q[:, :, 1::2, 1] = 1.0, 1.0
    k[0, 0, :, 0], k[0, 0, 256:, 0] = -0.02 * numbers(384, seed=14).abs(), -0.5
    k[0, 0, 0, 1] = 8.0
    return q, k, numbers(1, 1, 384, d, seed=3)


def case(number=1.5, mask=None, bias=None, alphas=None, scale=0.25, diagonal=1 << 20, precision=None):
    return attention.Case(mask, bias, alphas, number, scale, diagonal, precision)


def dense(q, k, v, of, grad):
    """The context and its gradients by the dense program in float64; once for the same tensors."""
    name = tuple((x.shape, hash(x.float().numpy().tobytes())) for x in (q, k, v)), str(of), q.dtype
    if name not in _KNOWN:
        _KNOWN[name] = _dense(q, k, v, of, grad)
    return _KNOWN[name]


_KNOWN = {}


def _dense(q, k, v, of, grad):
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    s = leaves[0] @ leaves[1].mT * of.scale
    bias = None if of.bias is None else of.bias.detach().double().requires_grad_()
    s = s if bias is None else s + bias
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(of.diagonal)
    seen = seen if of.mask is None else seen & of.mask
    order = of.number
    if of.alphas is not None:
        order = of.alphas.detach().double()[..., None, None].requires_grad_()
        leaves.append(order)
    leaves += [] if bias is None else [bias]
    with native.switched_off(), kernels_for(None):
        c = regard.entmax(s, order, mask=seen.expand(s.shape)) @ leaves[2]
    return c.detach(), torch.autograd.grad(c, leaves, grad.double())


def solved(q, k, v, of):
    """The errors of context and gradients by the kernels, relative to the largest entry of each."""
    grad = numbers(*q.shape[:-1], v.shape[-1], seed=9, dtype=q.dtype)
    result = attention.attend_forward(q, k, v, of)
    found = attention.attend_backward(q, k, v, of, grad, result, of.alphas is not None, of.bias is not None)
    context, slopes = dense(q, k, v, of, grad)
    ours = [result.context, *found[:3]]
    if of.alphas is not None:
        ours.append(found[3].sum(-1).sum_to_size(of.alphas.shape)[..., None, None])
    ours += [] if of.bias is None else [found.bias]
    theirs = [context, *slopes]
    return [
        float(((x.double() - y.reshape(x.shape)).abs().max() / y.abs().max().clamp(min=1e-3)).nan_to_num(math.inf))
        for x, y in zip(ours, theirs, strict=True)
    ]


MASKS = {
    "keys": lambda q, k: torch.rand(1, 1, 1, k, generator=torch.Generator().manual_seed(1)) < 0.6,
    "pairs": lambda q, k: torch.rand(1, 2, q, k, generator=torch.Generator().manual_seed(1)) < 0.6,
}


def few():
    """A few calls that catch faults between them: (name, q, k, v, case)."""
    q, k, v = qkv(37, 70)
    yield "negative", q, k - 3 * q.mean((2,), keepdim=True), v, case(bias=torch.full((1, 1, 1, 70), -40.0))
    yield "masked by key", q, k, v, case(1.3, mask=MASKS["keys"](37, 70))
    rows = MASKS["pairs"](37, 70)
    rows[..., 5, :] = False
    yield "masked by pair", q, k, v, case(2.0, mask=rows)
    x = 2 * numbers(1, 2, 66, 16, seed=4)
    yield "causal, k = q", x, x, numbers(1, 2, 66, 8, seed=8), case(diagonal=0)
    yield "causal, more keys", q, k, v, case(diagonal=33)
    q, k, v = near_the_threshold()
    yield "near the threshold, behind the top", q, k, v, case(scale=1.0)
    yield "near the threshold, before the top", q, k.flip(-2), v, case(scale=1.0)
    q, k, v = qkv(37, 70)
    yield "clustered", *clustered(128), case(scale=0.5)
    yield "many tiles", *qkv(16, 1000, heads=1), case(scale=0.05)
    yield "broad and narrow", *broad_and_narrow(), case(scale=1.0)
    x = [torch.cat([x, x.flip(1)]) for x in qkv(19, 40)]
    yield "a bias that examples share", *x, case(bias=numbers(1, 2, 19, 40, seed=11))
    yield "a bias that heads share", *x, case(bias=numbers(2, 1, 19, 40, seed=12))
    yield "alphas", q, k, v, case(0.0, alphas=torch.tensor([[1.2, 1.7]]))
