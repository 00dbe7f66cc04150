"""Dummy inputs for any model of transformers, from the names in the signature of its forward pass."""

from __future__ import annotations

import inspect
from typing import Any

import torch

BATCH, LENGTH = 2, 9


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these settings that the configuration, or one of its parts, has."""
    parts = [config]
    for part in parts:
        parts.extend(p for p in (getattr(part, n, None) for n in getattr(part, "sub_configs", {})) if p is not None)
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def pair(size: Any) -> tuple[int, int]:
    """Height and width."""
    if isinstance(size, dict):
        return size.get("height", 32), size.get("width", 32)
    return (size, size) if isinstance(size, int) else (size[-2], size[-1])


def pixels(config: Any, batch: int = BATCH) -> torch.Tensor:
    """Pictures (B, C, H, W)."""
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    height, width = pair(find(config, "image_size", "img_size", "input_size", "max_img_size", default=32))
    return torch.randn(batch, channels if isinstance(channels, int) else 3, height, width)


def words(config: Any, length: int = LENGTH) -> torch.Tensor:
    """Token numbers (B, L) that are no special ones."""
    size = find(config, "vocab_size", default=96)
    return torch.randint(5, max(6, min(size - 10, 80)), (BATCH, length))


def candidates(model: torch.nn.Module, config: Any) -> Any:
    """Sets of inputs to try, the likeliest first."""
    names = list(inspect.signature(model.forward).parameters)
    required = [
        n
        for n, p in inspect.signature(model.forward).parameters.items()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    main = getattr(model, "main_input_name", "input_ids")
    given: dict[str, Any] = {}
    for name in dict.fromkeys([*required, main]):
        if name in names and (value := one(name, config)) is not None:
            given[name] = value
    if "grid_thw" in names:
        patch = find(config, "patch_size", default=8)
        width = find(config, "in_channels", "num_channels", default=3) * find(config, "temporal_patch_size", default=1)
        for main in ("hidden_states", "pixel_values"):
            if main in names:
                patches = torch.randn(16, width * patch * patch)
                yield {main: patches, "grid_thw": torch.tensor([[1, 4, 4]])}
                yield {main: patches, "grid_thw": torch.tensor([[1, 4, 4]]), "merge_sizes": torch.tensor([2])}
    if "bbox" in names:
        given["bbox"] = torch.zeros(BATCH, LENGTH, 4, dtype=torch.long)
    if "visual_feats" in names:
        given["visual_feats"] = torch.randn(BATCH, 4, find(config, "visual_feat_dim", default=32))
        given["visual_pos"] = torch.rand(BATCH, 4, 4)
    if "past_values" in names:
        given["past_values"] = torch.randn(BATCH, find(config, "context_length", default=32), 1)
    if "flattened_patches" in names:
        given["flattened_patches"] = torch.randn(BATCH, LENGTH, 2 + 3 * find(config, "patch_size", default=8) ** 2)
        given["flattened_patches"][..., :2] = 1
    extra = {}
    if "decoder_input_ids" in names and "decoder_input_ids" not in given:
        extra["decoder_input_ids"] = words(config, 6)
    yield {**given, **extra}
    yield given
    if "input_ids" in names:
        yield {"input_ids": words(config), **extra}
    if {"input_ids", "pixel_values"} <= set(names):
        yield {"input_ids": words(config), "pixel_values": pixels(config), **extra}
    if "pixel_values" in names:
        if "input_ids" in names:
            frames = torch.randn(BATCH, 2, *pixels(config).shape[1:])
            yield {"input_ids": words(config), "pixel_values": frames, **extra}
        video = torch.randn(BATCH, find(config, "num_frames", default=2), *pixels(config).shape[1:])
        yield {**given, "pixel_values": video}
    if "input_features" in names:
        for shape in ((BATCH, 16, 64), (BATCH, 64, 16), (BATCH, 80, 3000), (BATCH, 64, 160)):
            yield {**given, "input_features": torch.randn(shape), **extra}
    if "input_values" in names:
        for shape in ((BATCH, 4000), (BATCH, 1, 4000), (BATCH, 64, 16), (BATCH, 1024, 128)):
            yield {**given, "input_values": torch.randn(shape), **extra}
    if "hidden_states" in names:
        yield {**given, "hidden_states": torch.randn(BATCH, LENGTH, find(config, "hidden_size", default=32))}
    if "inputs_embeds" in names:
        yield {"inputs_embeds": torch.randn(BATCH, LENGTH, find(config, "hidden_size", "d_model", default=32))}


def one(name: str, config: Any) -> Any:
    """What one argument takes."""
    if name in ("input_ids", "decoder_input_ids"):
        return words(config)
    if name == "pixel_values":
        return pixels(config)
    if name == "pixel_values_videos":
        return torch.randn(BATCH, find(config, "num_frames", "frames_per_clip", default=2), *pixels(config).shape[1:])
    if name == "bbox":
        return torch.zeros(BATCH, LENGTH, 4, dtype=torch.long)
    if name == "input_values":
        return torch.randn(BATCH, 8000)
    if name == "input_features":
        return torch.randn(BATCH, find(config, "num_mel_bins", "n_mels", default=16), 64)
    if name == "inputs_embeds":
        return torch.randn(BATCH, LENGTH, find(config, "hidden_size", "d_model", default=32))
    if name == "hidden_states":
        return torch.randn(BATCH, LENGTH, find(config, "hidden_size", "d_model", default=32))
    if name == "attention_mask":
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    if name == "decoder_attention_mask":
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    return None
