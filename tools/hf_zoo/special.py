"""What a tiny configuration needs besides small sizes, by the type of the model. Parts are named as in the model."""

from typing import Any

from transformers import BarkSemanticModel, ResNetConfig, SwinConfig

MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}, "head_dim": 8}
GLM = {"rope_parameters": {**MROPE["rope_parameters"], "partial_rotary_factor": 1.0}, "head_dim": 8}
WINDOWS = {"image_size": 64, "window_size": 2}
SAM = {
    "vision_config": {
        "image_size": 64,
        "patch_size": 16,
        "window_size": 2,
        "global_attn_indexes": [1],
        "output_channels": 32,
        "num_pos_feats": 16,
    },
    "prompt_encoder_config": {"image_size": 64, "patch_size": 16, "hidden_size": 32, "image_embedding_size": 4},
    "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 48, "iou_head_hidden_dim": 32},
}
SWIN = {"image_size": 128, "depths": [1] * 4, "num_heads": [2] * 4, "embed_dim": 16, "window_size": 4}
SERIES = {"prediction_length": 4, "context_length": 16, "num_time_features": 2}
ROTARY = {"use_rotary_embedding": True, "hidden_size": 128, "projection_dim": 128}


def resnet(*stages: str) -> ResNetConfig:
    """A backbone that needs no other package."""
    return ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 32], depths=[1] * 4, out_features=list(stages))


DETR = {"use_timm_backbone": False, "backbone": None, "backbone_config": resnet("stage4")}

SPECIAL: dict[str, dict[str, Any]] = {
    "autoformer": {**SERIES, "moving_average": 3},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8},
    "bridgetower": {"vision_config": {"hidden_size": 64}},
    "bridgetower_vision_model": {"hidden_size": 64},
    "bros": {"hidden_size": 64},
    "clvp": {"text_config": ROTARY, "speech_config": ROTARY},
    "clvp_encoder": {"use_rotary_embedding": False},
    "codegen": {"rotary_dim": 4},
    "conditional_detr": DETR,
    "cvt": {
        "embed_dim": [16, 32, 32],
        "num_heads": [1, 2, 4],
        "depth": [1, 1, 1],
        "drop_path_rate": [0.0, 0.0, 0.0],
        "drop_rate": [0.0, 0.0, 0.0],
        "attention_drop_rate": [0.0, 0.0, 0.0],
    },
    "dab-detr": DETR,
    "deformable_detr": {**DETR, "backbone_config": resnet("stage2", "stage3", "stage4")},
    "detr": DETR,
    "deepseek_v2": {"topk_method": "greedy", "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "donut-swin": WINDOWS,
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2}},
    "esm": {"vocab_size": 33},
    "glm4v_text": GLM,
    "glm4v_moe_text": GLM,
    "glm_image_text": GLM,
    "glm_ocr_text": GLM,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8},
    "grounding-dino": {
        "num_queries": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "backbone_config": {"image_size": 256},
    },
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "informer": SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lilt": {"hidden_size": 48},
    "luke": {"entity_vocab_size": 50},
    "mask2former": {"backbone_config": {**SWIN, "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
    "maskformer": {"backbone_config": WINDOWS},
    "mluke": {"entity_vocab_size": 50},
    "ministral": {"head_dim": 8},
    "mm-grounding-dino": {
        "num_queries": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "backbone_config": {"image_size": 256},
    },
    "mobilevit": {"hidden_sizes": [32, 32, 32]},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "omdet-turbo": {
        "image_size": 128,
        "backbone_config": SwinConfig(**SWIN, out_features=["stage2", "stage3", "stage4"]),
        "encoder_in_channels": [32, 64, 128],
        "apply_layernorm_after_vision_backbone": False,
        "text_config": {"hidden_size": 64},
        "text_projection_in_dim": 64,
        "text_projection_out_dim": 64,
        "class_embed_dim": 64,
    },
    "oneformer": {
        "backbone_config": {**SWIN, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "conv_dim": 32,
    },
    "perceiver": {"d_latents": 32, "d_model": 32, "num_latents": 6, "qk_channels": 32, "v_channels": 32},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 192},
    "pp_doclayout_v2": {
        "backbone_config": resnet("stage2", "stage3", "stage4"),
        "encoder_in_channels": [16, 32, 32],
        "class_thresholds": [0.555, 0.555],  # some boxes are below it, and padded
        "class_order": [0, 1],
    },
    "qwen2_5_omni_text": MROPE,
    "qwen2_5_vl_text": MROPE,
    "qwen2_vl_text": MROPE,
    "paddleocr_vl_text": MROPE,
    "qwen2_5_vl_vision": {"window_size": 16, "fullatt_block_indexes": [1]},
    "qwen2_5_omni_vision_encoder": {"window_size": 16, "fullatt_block_indexes": [1]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "sam": SAM,
    "sam_hq": SAM,
    "segformer": {"image_size": 128},
    "step3p5": {"sliding_window": 4},
    "superglue": {"keypoint_encoder_sizes": [8, 16], "gnn_layers_types": ["self", "cross"], "sinkhorn_iterations": 5},
    "superpoint": {"keypoint_decoder_dim": 65},
    "table-transformer": DETR,
    "time_series_transformer": SERIES,
    "tvp": {"backbone_config": resnet("stage4"), "max_img_size": 96, "visual_prompt_size": 8},
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "vits": {"speaking_rate": 1e6, "flow_size": 16, "upsample_initial_channel": 16},
    "zaya": {"num_hidden_layers": 4},
    "zoedepth": {
        "backbone_config": {
            "num_hidden_layers": 4,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
            "reshape_hidden_states": False,
        },
        "neck_hidden_sizes": [16] * 4,
        "bottleneck_features": 32,
        "bin_configurations": [
            {"name": name, "n_bins": 16, "min_depth": 0.001, "max_depth": 10.0} for name in ("indoors", "outdoors")
        ],
        "num_patch_transformer_layers": 4,
        "patch_transformer_hidden_size": 128,
        "patch_transformer_intermediate_size": 48,
        "patch_transformer_num_attention_heads": 4,
    },
}

#: Where eager attention misreads a boolean mask, and the attention that does not: it adds True as one, or takes a mask
#: of floats for one of booleans.
MISREAD: dict[str, Any] = {
    "grounding-dino": {"": "eager", "text_config": "sdpa"},
    "mm-grounding-dino": {"": "eager", "text_config": "sdpa"},
    "nemotron3_5_asr": "sdpa",
    "nemotron_asr_streaming": "sdpa",
    "nemotron_asr_streaming_encoder": "sdpa",
}

#: Where eager attention returns weights that sum to one, without what its sinks take of them.
WITHOUT_SINKS = ("granite_swa", "granitemoe_swa")

#: Which class is built where the whole model has no forward pass, but only generates.
STANDS_FOR: dict[str, Any] = {"bark": BarkSemanticModel}

#: Where rounding is larger than elsewhere: eager and sdpa attention differ by 2e-5 in these.
ROUGH = dict.fromkeys(("grounding-dino", "mm-grounding-dino"), 5e-5)
