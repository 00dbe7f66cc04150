"""The attentions inside the layers of a model, by name: affinities, maps, and which of them go together.

    dot               scaled inner product
    bilinear          q' W k, the general score: a learned W per head, which starts as the scaled inner product
    additive          v.tanh(q + k): a learned v per head
    wasserstein       minus the squared distance of Gaussians; with the map `gate` minus the distance itself

    softmax, sparsemax, entmax, entmax-1.3    distributions, with any affinity
    gate                                      sigmoid((bias - distance) / tau), both learned per head: wasserstein alone

The self-attention of the cells of a picture is `discrete`, of these parts, or `continuous-softmax` or
`continuous-sparsemax`: every cell has a density over the picture, `regard.nn.ContinuousSelfAttention`.

Help and completion of the command line read the lists below: this file imports torch when a layer is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from regard import _plain
from regard.vqa.kinds import MAP_NAMES, Continuous, SelfAttentionName, parse, standard_map_name

if TYPE_CHECKING:
    from torch import nn

    from regard.affinity import Affinity
    from regard.attention.arguments import Map

AffinityName = Literal["dot", "bilinear", "additive", "wasserstein"]
_GATE = "gate"
LAYER_MAP_NAMES = (*MAP_NAMES, _GATE)
"""Maps inside the layers that help and completion offer; also entmax-ALPHA."""
_TAU = 8.0  # of the squared distance in softmax: that of random heads of about 16 features


class LayerParts(NamedTuple):
    """Arguments of one attention in a layer; modules among them hold parameters, and belong to that attention alone."""

    affinity: Affinity | nn.Module
    map: Map


def layer_map_name(name: str, affinity: str) -> str:
    """The standard name of a map inside the layers; an error if there is none, or if it does not suit the affinity.

    >>> layer_map_name("entmax-1.50", "dot"), layer_map_name("gate", "wasserstein")
    ('entmax', 'gate')
    >>> layer_map_name("gate", "dot")
    Traceback (most recent call last):
    ValueError: map: got 'gate' with the affinity 'dot', expected 'gate' with 'wasserstein' only: ...
    """
    _plain.choice("affinity", affinity, get_args(AffinityName))
    if name != _GATE:
        return standard_map_name(name)
    if affinity != "wasserstein":
        expected = f"{name!r} with 'wasserstein' only: it is a sigmoid of minus a distance"
        remedy = "Choose that affinity, or a map that normalises: softmax, sparsemax, entmax."
        _plain.complain("map", f"{name!r} with the affinity {affinity!r}", expected, remedy)
    return name


def check_head_width(affinity: str, width: int, heads: int) -> None:
    """Check that heads share the width, and that each can be a Gaussian where it has to be: [mean, scale].

    >>> check_head_width("wasserstein", 12, 4)
    Traceback (most recent call last):
    ValueError: width: got 12 for 4 heads, expected an even number per head with 'wasserstein': ...
    """
    if width % heads:
        _plain.complain("heads", heads, f"a divisor of the width, {width}", "Choose another number of heads.")
    if affinity == "wasserstein" and width // heads % 2:
        expected = "an even number per head with 'wasserstein': half of it are means, half scales"
        _plain.complain("width", f"{width} for {heads} heads", expected, f"Take {width + heads}, or fewer heads.")


def check_self_attention(name: str, layers: int) -> None:
    """Check the name of the self-attention of cells, and that there is a layer for it.

    >>> check_self_attention("continuous-softmax", layers=0)
    Traceback (most recent call last):
    ValueError: self_attention: got 'continuous-softmax' with no layer on the picture, expected ...
    """
    _plain.choice("self_attention", name, get_args(SelfAttentionName))
    if name != "discrete" and not layers:
        got, expected = f"{name!r} with no layer on the picture", "layers or before of at least 1"
        _plain.complain("self_attention", got, expected, "Add a layer, or take 'discrete'.")


def cell_attention(name: str, width: int, heads: int, cells: tuple[int, int]) -> nn.Module | None:
    """The continuous self-attention of cells, with new parameters; None for "discrete", which a layer has itself.

    `name`: as above.
    `width`: of the layer.
    `heads`: of the attention.
    `cells`: (height, width) of the grid.

    >>> cell_attention("continuous-sparsemax", 16, 4, (3, 5)).alpha
    2
    """
    from regard.nn import ContinuousSelfAttention

    if name == "discrete":
        return None
    kind = parse(name)
    assert isinstance(kind, Continuous)
    return ContinuousSelfAttention(width, heads, cells, alpha=kind.alpha)


def layer_parts(affinity: str, map: str, width: int, heads: int) -> LayerParts:
    """The affinity and the map of one attention, with new parameters if they have any.

    `affinity`, `map`: names as above.
    `width`: of the layer.
    `heads`: of the attention.

    >>> layer_parts("additive", "sparsemax", width=64, heads=4).affinity
    Learned(Additive, v=(4, 16))
    """
    import torch

    from regard.affinity import Additive, Bilinear, Dot
    from regard.nn import Gate, Learned
    from regard.vqa.kinds import named_map
    from regard.wasserstein.affinities import GaussianW2, Unsquared

    map = layer_map_name(map, affinity)
    check_head_width(affinity, width, heads)
    features = width // heads
    if map == _GATE:
        return LayerParts(Unsquared(GaussianW2()), Gate(heads))
    parts: Affinity | nn.Module = Dot()
    if affinity == "bilinear":
        parts = Learned(Bilinear, weight=torch.eye(features).expand(heads, -1, -1) / features**0.5)
    elif affinity == "additive":
        parts = Learned(Additive, v=torch.empty(heads, features).uniform_(-1, 1) / features**0.5)
    elif affinity == "wasserstein":
        parts = GaussianW2(tau=_TAU)
    return LayerParts(parts, named_map(map)[1])
