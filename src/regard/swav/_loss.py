"""Codes, the loss between swapped views, and the loss to assignments of the whole set."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from regard import _check
from regard.maps.sinkhorn import Transport, sinkhorn


def codes(
    scores: Tensor,
    eps: float = 0.05,
    iterations: int = 3,
    *,
    queued: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Transport]:
    """The codes (..., B, K) of samples, and the whole transport; without gradient.

    Codes are the rows of Sinkhorn's plan between samples and prototypes, each normalised to sum one.

    `scores`: (..., B, K); several problems at once exchange their sums between processes together.
    `eps`: weight of the entropy; default 0.05.
    `iterations`: of Sinkhorn; default 3. With 0 the codes are softmax(scores / eps), which is not balanced.
    `queued`: (..., L, K), scores of past samples, part of the transport problem but not of the codes; default None.
    `group`: processes whose samples are assigned together; default None, this process alone.

    >>> code, transport = codes(torch.tensor([[1.0, 0.9], [1.0, 0.8]]), iterations=50)
    >>> code.sum(-1), code.argmax(-1)
    (tensor([1., 1.]), tensor([1, 0]))
    """
    scores = scores.detach()
    rows = scores if queued is None else torch.cat([queued.detach(), scores], -2)
    transport = sinkhorn(rows, eps, iterations, group=group)
    return transport.weights[..., -scores.shape[-2] :, :], transport


def swapped_loss(scores: Tensor, code: Tensor, temperature: float = 0.1) -> Tensor:
    """The loss of SwAV: each code is predicted from the scores of all other views of its sample.

    `scores` (V, B, K) are cosines of the views to the prototypes, the first C of them the views that have codes; `code`
    (C, B, K). The cross entropy -sum_k q_k log softmax(scores / temperature)_k, averaged over views other than the one
    the code is from, over codes and over samples. Differentiable in `scores`; computed in float32 at least.

    >>> swapped_loss(torch.zeros(2, 1, 4), torch.full((2, 1, 4), 0.25))
    tensor(1.3863)
    """
    _check.floating("scores", scores, min_dims=3)
    if scores.shape[0] < 2 or code.shape[0] > scores.shape[0] or code.shape[1:] != scores.shape[1:]:
        got = f"codes {tuple(code.shape)} for scores {tuple(scores.shape)}"
        _check.complain("code", got, "(C, B, K) for scores (V, B, K), C <= V, V >= 2", "Stack the views.")
    temperature = _check.number("temperature", temperature, above=0)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    log_p = (wide / temperature).log_softmax(-1)
    others = log_p.sum(0) - log_p[: len(code)]
    return -(code.to(log_p.dtype) * others).sum(-1).mean() / (len(scores) - 1)


def assigned_loss(
    scores: Tensor, labels: Tensor, temperature: float = 0.1, *, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The loss of DeepCluster-v2 and SeLa-v2: every view predicts the prototype that its sample is assigned to.

    The cross entropy -log softmax(scores / temperature)_label, averaged over views and over samples whose assignment is
    known; 0 if none is. Differentiable in `scores`; computed in float32 at least.

    `scores`: (V, B, K), cosines of the views to the prototypes.
    `labels`: (B,), numbers of prototypes; -1 is unknown.
    `temperature`: default 0.1.
    `group`: processes whose samples are counted together, so that the mean over processes of their losses is the loss
        of the whole batch; default None, this process alone.

    >>> assigned_loss(torch.zeros(3, 2, 4), torch.tensor([1, -1]))
    tensor(1.3863)
    """
    _check.floating("scores", scores, min_dims=3)
    if labels.shape != scores.shape[1:2] or labels.is_floating_point():
        got = f"{labels.dtype} {tuple(labels.shape)} for scores {tuple(scores.shape)}"
        _check.complain("labels", got, "(B,) whole numbers for scores (V, B, K)", "Give one for each sample.")
    temperature = _check.number("temperature", temperature, above=0)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    log_p = (wide / temperature).log_softmax(-1)
    known = labels >= 0
    count = known.sum().to(log_p.dtype)
    if group is not None:
        dist.all_reduce(count, group=group)
        count = count / dist.get_world_size(group)
    picked = log_p.gather(-1, labels.clamp(min=0).expand(len(scores), -1).unsqueeze(-1)).squeeze(-1)
    return -torch.where(known, picked, 0.0).sum() / (len(scores) * count.clamp(min=torch.finfo(count.dtype).tiny))
