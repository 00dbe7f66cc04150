"""Alphas that other code has learned with the entmax package, one per head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard import _check
from regard.importers._named import Named
from regard.nn.learned import Entmax

FREE, ITSELF = "pre_alpha", "alpha_chooser"
LEAST, MOST_ALPHA = 1.01, 2.0  # what adaptively sparse transformers clamp alpha to


def entmax_alphas(state: Mapping[str, Any]) -> dict[str, Entmax]:
    """Every learned alpha of a model, as a `regard.nn.Entmax` (2.4) by the name of the module that held it.

    `state` holds tensors by name, as `state_dict` gives them. Two layouts of adaptively sparse transformers are known:
    parameters called "pre_alpha", of shape (heads,), with alpha = 1 + sigmoid(pre_alpha) between 1.01 and 2; and
    parameters called "alpha_chooser", which are alpha itself. All other names are ignored. A state without any alpha is
    an error, and so is an alpha that is not above one.

    >>> state = {"layers.0.attn.pre_alpha": torch.zeros(2), "layers.0.attn.query.weight": torch.eye(4)}
    >>> entmax_alphas(state)["layers.0.attn"].alpha.flatten().tolist()
    [1.5, 1.5]
    """
    named = Named("state", state, "", "a model with learned alphas")
    modules = {}
    for name in sorted(named.left):
        owner, _, last = name.rpartition(".")
        if last == FREE:
            modules[owner] = _with_alpha(name, (1 + named.take(name).sigmoid()).clamp(LEAST, MOST_ALPHA))
        elif last == ITSELF:
            modules[owner] = _with_alpha(name, named.take(name))
    if not modules:
        _check.complain("state", "no alphas", f"names that end in {FREE} or {ITSELF}", "Is alpha learned there?")
    return modules


def _with_alpha(name: str, alpha: Tensor) -> Entmax:
    if alpha.numel() != max(alpha.shape, default=1) or not bool((alpha > 1).all()):
        got = f"{name} of shape {tuple(alpha.shape)}, from {float(alpha.min()):.6g} on"
        _check.complain("state", got, "one alpha above 1 for each head", "Softmax itself is regard.softmax.")
    map = Entmax(alpha.numel())
    excess = (alpha.flatten().double() - 1)[:, None, None]
    with torch.no_grad():  # the inverse of softplus, which is the identity for large numbers
        map.free.copy_(torch.where(excess < 30, excess.expm1().log(), excess))
    return map
