"""Inputs of models that take what no argument's name tells, by the type of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tools.hf_zoo.inputs import BATCH, pixels, words


def texts_and_tasks(config: Any) -> dict[str, Any]:
    """Pictures, the names of three classes for each, and a task in words, the first of them padded."""
    classes = torch.randint(5, 80, (3 * BATCH, 4))
    tasks = words(config)
    kept = torch.ones_like(tasks)
    kept[0, -3:] = 0
    return {
        "pixel_values": pixels(config),
        "classes_input_ids": classes,
        "classes_attention_mask": torch.ones_like(classes),
        "tasks_input_ids": tasks,
        "tasks_attention_mask": kept,
        "classes_structure": torch.full((BATCH,), 3),
    }


def picture_and_task(config: Any) -> dict[str, Any]:
    """Pictures, and a task as numbers."""
    return {"pixel_values": pixels(config), "task_inputs": torch.rand(BATCH, config.task_seq_len)}


def two_pictures(config: Any) -> dict[str, Any]:
    """Pairs of pictures to match."""
    return {"pixel_values": torch.rand(BATCH, 2, 3, 48, 48)}


def video_and_text(config: Any) -> dict[str, Any]:
    """Frames of a video, and words: of one video, for the places of the columns have the shape of a batch."""
    size = config.max_img_size
    return {"input_ids": words(config)[:1], "pixel_values": torch.rand(1, config.num_frames, 3, size, size)}


def text_and_sound(config: Any) -> dict[str, Any]:
    """Words, and the spectrogram of a voice."""
    return {"input_ids": words(config), "input_features": torch.randn(BATCH, config.decoder_config.feature_size, 12)}


def time_series(config: Any) -> dict[str, Any]:
    """A past and a future, with the features of their times."""
    past = config.context_length + max(config.lags_sequence)
    features = config.num_time_features
    return {
        "past_values": torch.rand(BATCH, past),
        "past_time_features": torch.rand(BATCH, past, features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.rand(BATCH, config.prediction_length),
        "future_time_features": torch.rand(BATCH, config.prediction_length, features),
    }


GIVEN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "autoformer": time_series,
    "clvp": text_and_sound,
    "informer": time_series,
    "lightglue": two_pictures,
    "omdet-turbo": texts_and_tasks,
    "oneformer": picture_and_task,
    "superglue": two_pictures,
    "time_series_transformer": time_series,
    "tvp": video_and_text,
}
