"""Sinkhorn against the published SwAV loop and POT, and Wasserstein attention against cdist + softmax."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.harness import Row, on_plain_path, peak_memory, peer, race, report
from regard.attention.attend import attend
from regard.maps.entmax import softmax
from regard.maps.sinkhorn import sinkhorn
from regard.wasserstein.affinities import GaussianW2

SAMPLES, PROTOTYPES, EPS = 4096, 3000, 0.05
HEADS, WIDTH = 4, 64


def trained_like() -> tuple[Tensor, Tensor]:
    """Samples and prototypes from a skewed mixture: far from balanced, so that 50 iterations still move the plan."""
    torch.manual_seed(0)
    centres = torch.randn(300, 128)
    use = torch.multinomial(1 / torch.arange(1, 301.0), SAMPLES, replacement=True)
    z = normalize(centres[use] + torch.randn(SAMPLES, 128), dim=-1)
    c = normalize(centres[torch.randint(300, (PROTOTYPES,))] + torch.randn(PROTOTYPES, 128), dim=-1)
    return z, c


def published(s: Tensor, iterations: int) -> Tensor:
    """The published SwAV loop: it rescales the whole matrix in every half iteration."""
    q = torch.exp(s / EPS).t()
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(1, keepdim=True)
        q /= q.shape[0]
        q /= q.sum(0, keepdim=True)
        q /= q.shape[1]
    q *= q.shape[1]
    return q.t()


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with all distances in memory."""
    return torch.softmax(-torch.cdist(q, k).square(), -1) @ v


SETUP = """
import torch
from benchmarks.transport import backward, explicit, ours, tokens
x = tokens({n})
tokens(64)
backward({f}, tokens(64))
"""


def tokens(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, diagonal Gaussians in 64 dimensions, and values, for 4 heads."""
    torch.manual_seed(0)
    q, k = torch.rand(1, HEADS, n, 2 * WIDTH), torch.rand(1, HEADS, n, 2 * WIDTH)
    v = torch.randn(1, HEADS, n, WIDTH)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same attention as `explicit`."""
    return attend(q, k, v, affinity=GaussianW2(), map=softmax)


def backward(f: object, x: tuple[Tensor, ...]) -> None:
    """Forward and backward."""
    for t in x:
        t.grad = None
    f(*x).sum().backward()  # type: ignore[operator]


def memory() -> list[Row]:
    """Peak memory of both, each in a fresh process."""
    used = {f: peak_memory(SETUP.format(n=4096, f=f), f"backward({f}, x)") for f in ("ours", "explicit")}
    large = peak_memory(SETUP.format(n=16_384, f="ours"), "backward(ours, x)")
    case, kept = "W2 attention, N = 4096, forward and backward", used["explicit"] >= 8 * used["ours"]
    return [
        Row(case, "MB", used["ours"], "cdist + softmax", used["explicit"], ">= 8x", kept),
        Row(
            "W2 attention, N = 16384, forward and backward", "MB", large, "the promise", 500.0, "< 500 MB", large < 500
        ),
    ]


def annealed(z: Tensor, c: Tensor) -> list[Row]:
    """geomloss, which anneals from the diameter down to eps, against as many of our iterations at eps."""
    if (geomloss := peer("geomloss")) is None:
        return []
    # |z - c|^2 / 2 = 1 - cosine: the same problem.
    blur, steps = EPS**0.5, 6
    solve = geomloss.SamplesLoss("sinkhorn", p=2, blur=blur, scaling=0.5, diameter=2.0, debias=False, potentials=True)
    f, g = solve(z, c)
    plan = ((f.view(-1, 1) + g.view(1, -1) - (1 - z @ c.T)) / EPS).exp() / (len(z) * len(c))
    mine = sinkhorn(z @ c.T, EPS, steps).plan
    off = [float((len(c) * p.sum(0) - 1).abs().mean()) for p in (mine, plan)]
    print(f"mean error of the prototypes' shares after {steps} steps: ours {off[0]:.3f}, geomloss {off[1]:.3f}")
    times = race({"ours": lambda: sinkhorn(z @ c.T, EPS, steps), "theirs": lambda: solve(z, c)}, seconds=6, least=3)
    case = f"Sinkhorn {SAMPLES} x {PROTOTYPES} from points, {steps} steps"
    return [Row(case, "ms", times["ours"].median, "geomloss, tensorized", times["theirs"].median)]


def main() -> None:
    # Memory first: the peak memory of a child process starts at the size of its parent.
    rows = memory()
    z, c = trained_like()
    s = z @ c.T
    uniform = torch.full((SAMPLES,), 1 / SAMPLES), torch.full((PROTOTYPES,), 1 / PROTOTYPES)
    for iterations, promise in ((3, 1.3), (50, 4.0)):
        result = sinkhorn(s, EPS, iterations)
        apart = float((SAMPLES * result.plan - published(s, iterations)).abs().max())
        share = PROTOTYPES * result.plan.sum(0)
        print(
            f"{iterations} iterations: codes differ from the published loop's by at most {apart:.1e}; "
            f"prototypes hold {float(share.min()):.4f} to {float(share.max()):.4f} of their share"
        )
        contestants = {
            "ours": lambda n=iterations: sinkhorn(s, EPS, n),
            "plain": on_plain_path(lambda n=iterations: sinkhorn(s, EPS, n)),
            "loop": lambda n=iterations: published(s, n),
            "small": lambda n=iterations: sinkhorn(s, 1e-3, n),
        }
        if iterations == 3 and (lightly := peer("lightly.loss.swav_loss")) is not None:
            contestants["lightly"] = lambda n=iterations: lightly.sinkhorn(s, n, EPS)
        if iterations == 3 and (ot := peer("ot")) is not None:  # 50 iterations would take too long
            contestants["pot"] = lambda n=iterations: ot.bregman.sinkhorn_log(
                *uniform, -s, EPS, numItermax=n, stopThr=0, warn=False
            )
        times = race(contestants, seconds=6, least=3)
        case = f"Sinkhorn {SAMPLES} x {PROTOTYPES}, {iterations} iterations"
        mine = times["ours"].median
        for name, who, least in (
            ("loop", "published SwAV loop", promise),
            ("plain", "ours without the kernel", 0.0),
            ("lightly", "lightly's Sinkhorn", 0.0),
            ("pot", "ot.bregman.sinkhorn_log", 4.0),
        ):
            if name in times:
                other = times[name].median
                promised = (f">= {least}x", other / mine >= least) if least else ("", None)
                rows.append(Row(case, "ms", mine, who, other, *promised))
        rows.append(Row(f"{case}, eps 0.001", "ms", times["small"].median, "ours at eps 0.05", mine))
    rows += annealed(z, c)
    n = 4096
    x = tokens(n)
    error = float((ours(*x) - explicit(*x)).detach().abs().max())
    print(f"W2 attention: greatest difference from the explicit form {error:.1e}")
    times = race({"ours": lambda: backward(ours, x), "explicit": lambda: backward(explicit, x)}, seconds=8, least=3)
    mine, other = times["ours"].median, times["explicit"].median
    case = f"W2 attention, N = {n}, forward and backward"
    rows.append(Row(case, "ms", mine, "cdist + softmax", other, ">= 2x", other / mine >= 2))
    report("transport", rows)
