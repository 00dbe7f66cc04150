"""Affinities, maps, masks and inputs that the tests of attention share."""

import math
from functools import partial

import torch
from reference import attend as reference
from reference import maps as reference_maps

import regard
from regard import Additive, Bilinear, Concatenation, Dot

MAPS = {
    "softmax": (regard.softmax, reference_maps.softmax),
    "sparsemax": (regard.sparsemax, reference_maps.sparsemax),
    "entmax15": (regard.entmax, reference_maps.entmax),
    "entmax13": (partial(regard.entmax, alpha=1.3), partial(reference_maps.entmax, alpha=1.3)),
    "mean": (regard.mean, reference_maps.mean),
}
AFFINITIES = ["dot", "gaussian", "bilinear", "concatenation", "additive"]
MASKS = ["none", "keys", "pairs", "causal"]


def make_affinity(name, d, dtype=torch.float64):
    torch.manual_seed(1)
    draw = partial(torch.randn, dtype=dtype)
    return {
        "dot": lambda: Dot(),
        "gaussian": lambda: Dot(1.0),
        "bilinear": lambda: Bilinear(draw(d, d) / math.sqrt(d)),
        "concatenation": lambda: Concatenation(draw(d), draw(d)),
        "additive": lambda: Additive(draw(d)),
    }[name]()


def parameters(affinity):
    return [x for x in vars(affinity).values() if isinstance(x, torch.Tensor)]


def make_inputs(lq=6, lk=9, d=4, dv=3, lead=(2,), dtype=torch.float64):
    return [torch.randn(*lead, n, w, dtype=dtype) for n, w in ((lq, d), (lk, d), (lk, dv))]


def make_mask(name, lq, lk, lead=(2,)):
    """What `attend` gets, and the same as one boolean matrix."""
    if name == "none":
        return {}, None
    if name == "causal":
        return {"causal": True}, reference.causal_mask(lq, lk)
    mask = torch.rand(*lead, 1 if name == "keys" else lq, lk) < 0.7
    mask[0] = False if name == "keys" else mask[0]
    mask[-1, 0] = False
    return {"mask": mask}, mask
