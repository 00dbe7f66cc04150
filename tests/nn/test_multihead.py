"""MultiheadAttention is torch's with dot and softmax, and a loop over heads with anything else."""

import inspect
import math
from functools import partial

import pytest
import torch
from reference.nn import multihead as reference
from torch.nn.functional import softplus

import regard
from regard import Additive, Bilinear, Concatenation, Dot, GaussianW2, Sinkhorn
from regard.nn import Entmax, Learned, MultiheadAttention

B, H, LQ, LK, E = 3, 4, 5, 7, 16


def pair(dtype=torch.float64, **options):
    """Torch's module with weights large enough that attention is far from uniform, and ours with the same."""
    options = {"batch_first": True} | options
    theirs = torch.nn.MultiheadAttention(E, H, dtype=dtype, **options)
    with torch.no_grad():
        for x in theirs.parameters():
            x.copy_(torch.randn_like(x) / math.sqrt(x.shape[-1]))
    ours = MultiheadAttention(E, H, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(options, dtype=torch.float64, batched=True):
    shapes = ((LQ, E), (LK, options.get("kdim", E)), (LK, options.get("vdim", E)))
    if batched:
        first = options.get("batch_first", True)
        shapes = tuple((B, n, w) if first else (n, B, w) for n, w in shapes)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def masks(name, dtype=torch.float64, batched=True):
    torch.manual_seed(3)
    lead = (B,) if batched else ()
    padding = torch.rand(*lead, LK) < 0.4
    padding[..., 0] = False
    pairs = torch.rand(LQ, LK) < 0.4
    pairs[:, 0] = False
    each = torch.rand(H * math.prod(lead), LQ, LK) < 0.4
    each[..., 0] = False

    def minus_infinity(mask):
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)

    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "pairs": {"attn_mask": pairs},
        "each head": {"attn_mask": each},
        "both": {"key_padding_mask": padding, "attn_mask": pairs},
        "float both": {"key_padding_mask": minus_infinity(padding), "attn_mask": minus_infinity(pairs)},
        "bias": {"attn_mask": torch.randn(LQ, LK, dtype=dtype)},
        "bias and padding": {
            "attn_mask": torch.randn(H * math.prod(lead), LQ, LK, dtype=dtype),
            "key_padding_mask": minus_infinity(padding),
        },
    }[name]


MASKS = ["none", "padding", "pairs", "each head", "both", "float both", "bias", "bias and padding"]
OPTIONS = [
    {},
    {"batch_first": False},
    {"kdim": 6, "vdim": 10},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6, "batch_first": False},
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_equals_torch(options, mask, need_weights, dtype, atol):
    theirs, ours = pair(dtype, **options)
    given = inputs(options, dtype)
    results = []
    for layer in (theirs, ours):
        out, weights = layer(*given, need_weights=need_weights, **masks(mask, dtype))
        grads = torch.autograd.grad(out.square().mean(), (*given, *layer.parameters()))
        results.append((out, *([] if weights is None else [weights]), *grads))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("more", [False, True])
def test_weights_and_unbatched_input_equal_torch(batched, mask, average, more):
    theirs, ours = pair(add_bias_kv=more, add_zero_attn=more)
    given = inputs({}, batched=batched)
    how = {"average_attn_weights": average, **masks(mask, batched=batched)}
    torch.testing.assert_close(ours(*given, **how), theirs(*given, **how), rtol=0, atol=1e-12)


def test_self_attention_and_shared_keys_take_fewer_products():
    """The same tensor for query, key and value, or for key and value, goes through one product: the same numbers."""
    theirs, ours = pair()
    x, y = inputs({})[:2]
    for given in ((x, x, x), (x, y, y), (x, y, y.clone())):
        results = []
        for layer in (theirs, ours):
            out = layer(*given, need_weights=False)[0]
            results.append((out, *torch.autograd.grad(out.square().mean(), tuple(layer.parameters()))))
        for expected, got in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_causal(need_weights, padded):
    theirs, ours = pair()
    x = inputs({})[0]
    later = torch.ones(LQ, LQ, dtype=torch.bool).triu(1)
    padding = masks("padding")["key_padding_mask"][:, :LQ] if padded else None
    how = {"key_padding_mask": padding, "need_weights": need_weights}
    expected = theirs(x, x, x, attn_mask=later, **how)
    for given in ({}, {"attn_mask": later}):
        torch.testing.assert_close(ours(x, x, x, is_causal=True, **given, **how), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
def test_is_causal_alone_is_upper_left_and_beside_a_mask_a_hint(options, need_weights):
    """The lengths differ, so that the alignment shows; torch wants the mask itself."""
    theirs, ours = pair(**options)
    query, key, value = inputs({})
    later = torch.ones(LQ, LK, dtype=torch.bool).triu(1)
    expected = theirs(query, key, value, attn_mask=later, need_weights=need_weights)
    got = ours(query, key, value, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    other = masks("pairs")["attn_mask"]
    expected = theirs(query, key, value, attn_mask=other, need_weights=need_weights)
    got = ours(query, key, value, attn_mask=other, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float", "bias"])
def test_a_query_with_no_key_left_gets_zeros(kind, need_weights):
    _, ours = pair()
    given = inputs({})
    padding = torch.zeros(B, LK, dtype=torch.bool)
    padding[1] = True
    how = {"key_padding_mask": padding if kind == "bool" else torch.where(padding, -torch.inf, 0.0).double()}
    if kind == "bias":
        how["attn_mask"] = torch.randn(LQ, LK).double()
    out, weights = ours(*given, need_weights=need_weights, **how)
    assert (out[1] == ours.out_proj.bias).all()
    assert weights is None or (weights[1] == 0).all()
    grads = torch.autograd.grad(out.square().sum(), (*given, *ours.parameters()))
    assert all(g.isfinite().all() for g in grads)
    assert (grads[0][1] == 0).all()


def test_a_bias_may_be_learned_from_zero():
    """All zeros would pass for a mask that leaves nothing out; but it wants a gradient."""
    theirs, ours = pair()
    given = inputs({})
    bias = torch.zeros(LQ, LK, dtype=torch.float64, requires_grad=True)
    expected, got = (
        torch.autograd.grad(m(*given, attn_mask=bias, need_weights=False)[0].square().sum(), bias)[0]
        for m in (theirs, ours)
    )
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(got, expected)


AFFINITIES = {
    "gaussian": lambda: (Dot(1.0), lambda a, h: a),
    "bilinear": lambda: (Learned(Bilinear, weight=torch.randn(H, 4, 4)), lambda a, h: Bilinear(a.weight[h])),
    "concatenation": lambda: (
        Learned(Concatenation, w_q=torch.randn(H, 4), w_k=torch.randn(H, 4)),
        lambda a, h: Concatenation(a.w_q[h], a.w_k[h]),
    ),
    "additive": lambda: (Learned(Additive, v=torch.randn(H, 4)), lambda a, h: Additive(a.v[h])),
}
MAPS = {
    "softmax": lambda: (regard.softmax, lambda m, h: m),
    "sparsemax": lambda: (regard.sparsemax, lambda m, h: m),
    "entmax": lambda: (partial(regard.entmax, alpha=1.3), lambda m, h: m),
    "mean": lambda: (regard.mean, lambda m, h: m),
    "sinkhorn": lambda: (Sinkhorn(iterations=20), lambda m, h: m),
    "learned": lambda: (Entmax(H, 1.4), lambda m, h: partial(regard.entmax, alpha=m.alpha[h])),
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("affinity_name", AFFINITIES)
def test_any_affinity_and_any_map(affinity_name, map_name, need_weights):
    (affinity, one_affinity), (map_, one_map) = AFFINITIES[affinity_name](), MAPS[map_name]()
    layer = MultiheadAttention(E, H, batch_first=True, affinity=affinity, map=map_).double()
    torch.nn.init.normal_(layer.in_proj_weight, std=0.5)
    torch.nn.init.normal_(layer.in_proj_bias)
    if isinstance(map_, Entmax):
        torch.nn.init.normal_(map_.free)
    query, key, _ = inputs({})
    left_out = masks("pairs")["attn_mask"] if map_name != "sinkhorn" else torch.zeros(LQ, LK, dtype=torch.bool)
    out, _ = layer(query, key, key, attn_mask=left_out, need_weights=need_weights)
    expected = torch.stack(
        [
            reference(layer, partial(one_affinity, affinity), partial(one_map, map_), query[b], key[b], ~left_out)
            for b in range(B)
        ]
    )
    torch.testing.assert_close(out, expected)
    learned = [x for part in (affinity, map_) if isinstance(part, torch.nn.Module) for x in part.parameters()]
    if learned:
        grads = [torch.autograd.grad(x.square().sum(), learned, retain_graph=True) for x in (out, expected)]
        torch.testing.assert_close(*grads)
        assert all(g.abs().max() > 1e-6 for g in grads[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_wasserstein_heads_are_means_and_scales(need_weights):
    layer = MultiheadAttention(E, H, batch_first=True, affinity=GaussianW2(tau=2.0)).double()
    torch.nn.init.normal_(layer.in_proj_weight, std=0.5)
    x = inputs({})[0]
    q, k, v = (p.unflatten(-1, (H, 4)) for p in (x @ layer.in_proj_weight.T).chunk(3, -1))
    context = []
    for h in range(H):
        (m, s), (n, t) = ((z[:, :, h, :2], softplus(z[:, :, h, 2:])) for z in (q, k))
        squared = ((m[:, :, None] - n[:, None]) ** 2).sum(-1) + ((s[:, :, None] - t[:, None]) ** 2).sum(-1)
        context.append(torch.softmax(-squared / 2, -1) @ v[:, :, h])
    expected = torch.cat(context, -1) @ layer.out_proj.weight.T
    torch.testing.assert_close(layer(x, x, x, need_weights=need_weights)[0], expected)


def test_doubly_stochastic_weights():
    layer = MultiheadAttention(E, H, batch_first=True, map=Sinkhorn(tol=1e-9)).double()
    x = inputs({})[0]
    weights = layer(x, x, x, average_attn_weights=False)[1]
    for dim in (-1, -2):
        torch.testing.assert_close(weights.sum(dim), torch.ones(B, H, LQ, dtype=torch.float64))


@pytest.mark.parametrize("map_", [regard.softmax, regard.sparsemax, Sinkhorn(iterations=5)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_falls_on_weights_in_training_alone(map_, need_weights):
    torch.manual_seed(0)
    layer = MultiheadAttention(E, H, batch_first=True, dropout=0.3, map=map_).double()
    x = inputs({})[0].detach()
    expected = layer.eval()(x, x, x, need_weights=need_weights)[0]
    torch.testing.assert_close(layer(x, x, x, need_weights=need_weights)[0], expected, rtol=0, atol=0)
    layer.train()
    many = torch.stack([layer(x, x, x, need_weights=need_weights)[0] for _ in range(800)])
    assert (many[0] != expected).any()
    assert ((many.mean(0) - expected).abs() <= 5 * many.std(0) / math.sqrt(len(many)) + 1e-9).all()
    dropped = layer(x, x, x, average_attn_weights=False)[1]
    whole = layer.eval()(x, x, x, average_attn_weights=False)[1]
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.7)
    assert 0.1 < 1 - kept[whole > 0].float().mean() < 0.5


def test_dropout_in_blocks_has_the_gradient_of_what_it_dropped(monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 50)
    layer = MultiheadAttention(E, H, batch_first=True, dropout=0.5).double()
    x = torch.randn(1, 6, E, dtype=torch.float64)

    def loss(x):
        torch.manual_seed(5)
        return layer(x, x, x, need_weights=False)[0].square().sum()

    assert torch.autograd.gradcheck(loss, x.requires_grad_())


def test_dropout_leaves_coupled_rows_together(monkeypatch):
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 50)
    layer = MultiheadAttention(E, H, batch_first=True, dropout=0.5, map=Sinkhorn(iterations=5))
    x = torch.randn(1, 6, E)
    outputs = []
    for need_weights in (True, False):
        torch.manual_seed(5)
        outputs.append(layer(x, x, x, need_weights=need_weights)[0])
    torch.testing.assert_close(outputs[1], outputs[0])


@pytest.mark.parametrize("alpha", [1.01, 1.1, 1.25, 1.5, 1.7, 2.0, 3.0, 50.0])
def test_learned_alpha_starts_where_it_should(alpha):
    assert (Entmax(3, alpha).alpha == torch.tensor(alpha)).all()
    s = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(Entmax(3, alpha).double()(s), regard.entmax(s, alpha), rtol=1e-5, atol=1e-6)


def test_learned_alpha_learns_each_head_by_itself():
    """Targets are entmax weights at other alphas, which gradient descent must find."""
    torch.manual_seed(0)
    s = torch.randn(64, 3, 4, 6)
    wanted = torch.tensor([1.1, 1.5, 1.9])
    target = regard.entmax(s, wanted.view(3, 1, 1))
    map_ = Entmax(3)
    optimiser = torch.optim.Adam(map_.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        (map_(s) - target).square().sum().backward()
        optimiser.step()
    torch.testing.assert_close(map_.alpha.detach().flatten(), wanted, rtol=0, atol=0.02)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_state_dict_is_torchs(options):
    theirs, ours = torch.nn.MultiheadAttention(E, H, **options), MultiheadAttention(E, H, **options)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_call_gives_the_same_numbers(options):
    """The order of arguments, the defaults, and what a seed makes of the parameters."""
    names = ("dropout", "bias", "add_bias_kv", "add_zero_attn", "kdim", "vdim", "batch_first", "device", "dtype")
    defaults = (0.0, True, False, False, None, None, False, None, None)
    positional = [options.get(name, default) for name, default in zip(names, defaults, strict=True)]
    made = []
    for kind in (torch.nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(3)
        layer = kind(E, H, *positional)
        x = [torch.randn(LQ, B, w) for w in (E, layer.kdim, layer.vdim)]
        made.append((layer.state_dict(), layer(*x)))
    torch.testing.assert_close(made[1], made[0])
    signature, theirs = (
        list(inspect.signature(kind).parameters.values()) for kind in (MultiheadAttention, torch.nn.MultiheadAttention)
    )
    for ours, their in zip(signature, theirs, strict=False):
        assert (ours.name, ours.default, ours.kind) == (their.name, their.default, their.kind)
    assert [x.name for x in signature[len(theirs) :]] == ["affinity", "map", "add_sink"]


X = torch.zeros(B, LQ, E)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"query": X[..., :8]}, ValueError, r"^query: got width 8, expected 16\. Set kdim"),
        ({"key": X[..., :8]}, ValueError, r"^key: got width 8"),
        ({"query": X[None]}, ValueError, r"^query: got shape \(1, 3, 5, 16\), expected three axes"),
        ({"key": X[0]}, ValueError, r"^key: got shape \(5, 16\), expected three axes"),
        ({"value": X[:2]}, ValueError, r"^query, key, value: got .* expected one batch size on axis 0"),
        ({"value": X[:, :2]}, ValueError, r"^value: got 2 values, expected one for each of the 5 keys"),
        ({"query": X.long()}, TypeError, r"^query: got torch.int64"),
        ({"attn_mask": torch.zeros(LQ, LQ).long()}, TypeError, r"^attn_mask: got torch.int64"),
        ({"attn_mask": torch.zeros(LQ, 3)}, ValueError, r"^attn_mask: got shape \(5, 3\), expected \(5, 5\) or"),
        ({"key_padding_mask": torch.zeros(LQ)}, ValueError, r"^key_padding_mask: got shape \(5,\), expected \(3, 5\)"),
        ({"query": X * torch.nan}, ValueError, r"got NaN"),
        ({"attn_mask": torch.full((LQ, LQ), torch.nan)}, ValueError, r"^attn_mask: got NaN, expected numbers below"),
    ],
)
def test_bad_input_is_named(given, error, message):
    layer = MultiheadAttention(E, H, batch_first=True)
    with pytest.raises(error, match=message):
        layer(**{"query": X, "key": X, "value": X} | given)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_heads": 3}, ValueError, r"^num_heads: got 3, expected a divisor of embed_dim = 16"),
        ({"embed_dim": 0}, ValueError, r"^embed_dim: got 0"),
        ({"dropout": 1.0}, ValueError, r"^dropout: got 1.0, expected a share"),
        ({"affinity": Dot}, TypeError, r"^affinity: got Dot, expected an Affinity object"),
        ({"affinity": Additive(torch.ones(4, requires_grad=True))}, ValueError, r"^affinity: .* Use Learned\(Additive"),
        ({"map": 3}, TypeError, r"^map: got int"),
        ({"map": partial(regard.entmax, alpha=torch.ones(1, requires_grad=True))}, ValueError, r"^map: .*Entmax"),
    ],
)
def test_bad_settings_are_named(options, error, message):
    with pytest.raises(error, match=message):
        MultiheadAttention(**{"embed_dim": E, "num_heads": H} | options)


def test_bad_parts_are_named():
    with pytest.raises(ValueError, match=r"^alpha: got 1"):
        Entmax(2, 1.0)
    with pytest.raises(TypeError, match=r"^weight: got list"):
        Learned(Bilinear, weight=[1.0])
    with pytest.raises(TypeError, match=r"^make: got dict"):
        Learned(dict, weight=torch.ones(1))


def test_repr():
    layer = MultiheadAttention(E, H, 0.1, kdim=8, batch_first=True, map=partial(regard.entmax, alpha=1.5))
    assert "kdim=8, batch_first=True, affinity=Dot(scale=None), map=Entmax(alpha=1.5), dropout=0.1" in repr(layer)
    assert "num_heads=4, add_bias_kv=True, add_zero_attn=True, " in repr(
        MultiheadAttention(E, H, 0.0, True, True, True)
    )
    layer = MultiheadAttention(E, H, batch_first=True, affinity=Learned(Additive, v=torch.ones(4, 4)), map=Entmax(4))
    assert "(affinity): Learned(Additive, v=(4, 4))" in repr(layer)
    assert "(map): Entmax(heads=4, alpha=1.5)" in repr(layer)
    map_ = Entmax(2)
    torch.nn.init.normal_(map_.free)
    assert " to " in repr(map_)
    assert repr(Entmax(2).to("meta")) == "Entmax(heads=2)"
    assert "affinity=Bilinear, map=Sinkhorn(eps=1.0" in repr(
        MultiheadAttention(E, H, affinity=Bilinear(torch.eye(4)), map=Sinkhorn())
    )
