"""torch's own tests of `nn.MultiheadAttention`, with `regard.nn.MultiheadAttention` under that name.

Tests that look at the weights call `multi_head_attention_forward` with the parameters of a module; they get what that
module itself makes of the same arguments, with torch's NaN for a query with no key left. A call without weights is
their reference, and stays torch's.
"""

from __future__ import annotations

from typing import Any

TESTS = ["test/nn/test_multihead_attention.py"]

_WORDS = "Errors are ValueErrors in regard's own words, where torch raises AssertionError."
_NESTED = "Expects an error for nested tensors that want a gradient; here they work."
_PRIVATE = "Looks for a call of a private kernel of torch's, which regard does not make (nor does torch 2.13 there)."
REASONS = {
    "*::test_multihead_attn_invalid_shape": _WORDS,
    "*::test_multihead_attn_fast_path_invalid_shape": _WORDS,
    "*::test_multihead_attn_nested_tensor_outside_fast_path": _NESTED,
    "*::test_multihead_self_attn_two_masks_fast_path_mock_cpu": _PRIVATE,
}


def install() -> None:
    """Replace the class, also where torch's transformer layers look for it, and the function."""
    import torch
    from torch.nn.modules import activation, transformer

    from regard.nn import MultiheadAttention

    modules: list[Any] = [torch.nn, torch.nn.modules, activation, transformer]
    for module in modules:
        module.MultiheadAttention = MultiheadAttention
    theirs = torch.nn.functional.multi_head_attention_forward

    class Given(MultiheadAttention):
        """With keys and values that were projected before, if there are any: (B * H, L, d)."""

        static: tuple[Any, ...] = (None, None)

        def _project(self, *inputs: Any) -> tuple[Any, ...]:
            made = list(super()._project(*inputs))
            for place, x in enumerate(self.static, start=1):
                if x is not None:
                    heads = x.unflatten(0, (-1, self.num_heads))
                    made[place] = heads.permute(2, 0, 1, 3).flatten(-2)
            return tuple(made)

    def forward(query: Any, key: Any, value: Any, embed_dim: int, heads: int, *given: Any, **named: Any) -> Any:
        names = ("in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "dropout", "out_weight")
        names += ("out_bias", "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight")
        names += ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        how = dict(zip(names, given, strict=False)) | named
        if not how["need_weights"]:
            return theirs(query, key, value, embed_dim, heads, *given, **named)
        static = named.get("static_k"), named.get("static_v")
        if how["bias_k"] is not None and static != (None, None):
            raise AssertionError("bias cannot be added to static key.")  # the words that the test looks for
        layer = Given(embed_dim, heads, how["dropout"], kdim=key.shape[-1], vdim=value.shape[-1])
        layer.static, layer.add_zero_attn = static, how["add_zero_attn"]
        for name in ("in_proj_weight", "in_proj_bias", "bias_k", "bias_v", *names[-3:]):
            setattr(layer, name, how.get(name))
        layer.out_proj.weight, layer.out_proj.bias = how["out_weight"], how["out_bias"]
        masks = {name: how[name] for name in ("key_padding_mask", "attn_mask")}
        average = named["average_attn_weights"]
        out, weights = layer.train(how["training"])(query, key, value, average_attn_weights=average, **masks)
        empty = (weights == 0).all(-1, keepdim=True)  # queries with no key left: zeros here, NaN in torch
        per_query = (empty if average else empty[:, 0]).transpose(0, 1)
        return out.masked_fill(per_query, torch.nan), weights.masked_fill(empty, torch.nan)

    functional: Any = torch.nn.functional
    functional.multi_head_attention_forward = forward
