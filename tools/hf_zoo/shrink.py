"""Tiny configurations of any architecture of transformers: the default one, with every size made small by its name."""

from __future__ import annotations

import re
from typing import Any

from transformers import CONFIG_MAPPING

from tools.hf_zoo.special import SPECIAL, STANDS_FOR

VOCABULARY = 96

#: Names of settings, and the size that each gets. The first pattern that is found in a name decides.
SIZES: list[tuple[str, Any]] = [
    (r"num_feat_extract_layers|num_conv_pos|conv_dim|conv_stride|_kernel", None),
    (r"drop(out|path|_rate|_prob|$)|pdrop|layerdrop|dropout", 0.0),
    (r"mask_time_prob|mask_feature_prob|jitter", 0.0),
    (r"^rotary_dim$", 4),
    (r"^(partial_)?rotary|theta|_pct$|_factor$|eps(ilon)?$|_std$|scale$|_weight$|_coef", None),
    (r"(num|n)_(key_value|kv)_heads|num_kv_heads|num_key_value_heads|multi_query_group_num", 2),
    (r"linear_num_\w+_heads", 4),
    (r"(num|n)_\w*heads?$|^n_heads?$|num_heads|n_head|attention_heads$|_heads$", 4),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"(num|n)_\w*(layers|blocks|layer)$|^n_layers?$|^layers$|depth$|_layers$|num_hidden_layers|^num_layers", 2),
    (r"num_experts_per_tok|moe_topk|moe_top_k|num_selected_experts|moe_k$|num_experts_per_token|top_k_experts", 2),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|num_experts", 4),
    (r"n_group$|topk_group", 1),
    (r"n_shared_experts|num_shared_experts", 1),
    (r"q_lora_rank|kv_lora_rank|lora_rank", 16),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim|qk_head_dim|head_dim|d_kv|attention_head_size|head_size", 8),
    (r"hidden_size_per_layer_input|vocab_size_per_layer_input", None),
    (r"entity_vocab_size|type_vocab_size", None),
    (r"vocab_size|vocabulary_size|n_vocab|^n_tokens$", VOCABULARY),
    (r"intermediate|ffn|d_ff|feed_?forward|inner_dim|n_inner|mlp_dim|expansion_dim|_inner$|ff_dim", 48),
    (r"mlp_ratio|_ratio$", None),
    (r"group_norm|groups$|norm_num_groups", None),
    (
        r"hidden_size$|d_model|n_embd|embed_dim|hidden_dim|embedding_size|^dim$|embedding_dim|_dim$|_dims?$|proj.*size$"
        r"|hidden_size|_channels$|d_embed|width$|lru_width|emb_dim",
        32,
    ),
    (r"max_(position|source|target|seq\w*)\w*|n_positions|max_length|seq_length|block_size|n_ctx|seq_len", 128),
    (r"^depths$", 1),
    (r"image_size|img_size|input_size$|resolution", 32),
    (r"patch_size$", 8),
    (r"sliding_window|window_size|attention_window", 4),
    (r"num_frames|tubelet", 2),
    (r"num_queries|num_latents|num_query_tokens|query_length", 6),
    (r"conv_kernel|d_conv", None),
    (r"state_size|d_state|ssm_state|mamba_d_state", 8),
    (r"n_mels|num_mel_bins|input_feat_per_channel", 16),
]

KEEP = {"num_channels", "in_channels", "in_chans", "input_channels", "n_channels", "num_input_channels", "use_cache"}
DERIVED = {
    "layer_types",
    "mlp_layer_types",
    "architectures",
    "transformers_version",
    "dtype",
    "model_type",
    "block_types",
    "layers_block_type",
    "hybrid_layer_ids",
    "layer_type_list",
    "out_features",
    "out_indices",
    "stage_names",
    "_attn_implementation_internal",
    "_attn_implementation",
    "rope_parameters",
    "no_rope_layers",
    "compress_layer_types",
}


def size_of(name: str, value: Any) -> Any:
    """The tiny size of a setting; as it is where no pattern knows its name."""
    if name in KEEP or value is None or isinstance(value, (str, bool)):
        return value
    if re.search(r"_(token_id|token_index|idx)$|_token_id|_id$|_index$|token_id", name):
        return min(value, VOCABULARY - 4) if isinstance(value, int) else value
    for pattern, size in SIZES:
        if re.search(pattern, name):
            if size is None:
                return value
            if "size" in name and size == 32 and "image" in name and isinstance(value, (list, tuple)):
                return type(value)([size] * len(value))
            return shrunk(value, size)
    return value


def shrunk(value: Any, size: Any) -> Any:
    """`value` made no larger than `size`; lists keep their length and the steps between their entries."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and isinstance(size, float):
        return size
    if isinstance(value, int):
        return min(value, size) if value > 0 else value
    if isinstance(value, float):
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(x, int) and x > 0 for x in value):
        top = max(value)
        if top <= size:
            return value
        if min(value) == top or size < 16:
            return type(value)([size] * len(value))
        return type(value)([size * round(x / min(value)) for x in value])
    return value


def tiny(model_type: str, **settings: Any) -> Any:
    """A tiny configuration of this type, on CPUs and without downloads."""
    special = SPECIAL.get(model_type, {})
    cls = STANDS_FOR[model_type].config_class if model_type in STANDS_FOR else CONFIG_MAPPING[model_type]
    return build(cls, {**special, **settings})


def build(cls: Any, special: dict[str, Any]) -> Any:
    """An instance of `cls` with every size shrunk, and those of its parts; `special` overrides by name."""
    default = cls()
    given: dict[str, Any] = {}
    parts = {name: getattr(default, name, None) for name in getattr(cls, "sub_configs", {})}
    for name, value in default.to_dict().items():
        if name in DERIVED or name in parts or name.startswith("_"):
            continue
        new = size_of(name, value)
        if new != value:
            given[name] = new
    if "kv_lora_rank" in given and "num_key_value_heads" in given:
        given["num_key_value_heads"] = given.get("num_attention_heads", 4)
    rope = getattr(default, "rope_parameters", None)
    if isinstance(rope, dict) and "mrope_section" in rope:
        given["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
        given["head_dim"] = 8
    computed = isinstance(getattr(cls, "layer_types", None), property)
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or []))
    if len(kinds) > 1 and "num_hidden_layers" in given and not computed:
        given["layer_types"] = kinds
        given["num_hidden_layers"] = len(kinds)
    for name, part in parts.items():
        if part is None:
            continue
        inner = special.get(name, {})
        own = SPECIAL.get(getattr(part, "model_type", ""), {})
        given[name] = build(type(part), {**own, **inner}) if isinstance(inner, dict) else inner
    for name, value in special.items():
        if name not in parts:
            given[name] = value
    mapped = getattr(cls, "attribute_map", {})
    for name in [name for name in given if name in mapped and mapped[name] in given and mapped[name] != name]:
        given.pop(name)
    return cls(**given)
