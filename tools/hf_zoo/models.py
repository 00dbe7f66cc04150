"""Which class of transformers stands for an architecture, and tiny models of it."""

from __future__ import annotations

import copy
import importlib
import inspect
from typing import Any

import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto import modeling_auto

from tools.hf_zoo.special import STANDS_FOR

#: Where to look for a class, the one that tells most first: a language model shows whether it sees the future.
ORDER = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "", "BACKBONE", "PRETRAINING")
LARGEST = 30_000_000  # parameters: a tiny model that is larger than this was not made tiny


def architectures() -> list[str]:
    """The types of models in this release of transformers."""
    return sorted(CONFIG_MAPPING.keys())


def classes_of(model_type: str, config: Any) -> list[Any]:
    """The classes to try for this type: those of the tasks above, then any of its file that takes its configuration."""
    if model_type in STANDS_FOR:
        return [STANDS_FOR[model_type]]
    found = []
    for kind in ORDER:
        names = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES" if kind else "MODEL_MAPPING_NAMES")
        name = names.get(model_type)
        name = name[0] if isinstance(name, (tuple, list)) else name
        found.append(getattr(transformers, name, None) if name else None)
    try:
        module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    except ImportError:
        module = None
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if issubclass(cls, PreTrainedModel) and cls.config_class is type(config) and "forward" in vars(cls):
            found.append(cls)
    return [cls for cls in dict.fromkeys(found) if cls is not None and cls.__name__ != "PreTrainedModel"]


def make(cls: Any, config: Any, implementation: Any) -> nn.Module:
    """A model in evaluation mode."""
    return cls._from_config(config, attn_implementation=implementation).eval()


def twin(model: nn.Module, config: Any, implementation: Any) -> nn.Module:
    """The same weights under another attention."""
    other = make(type(model), copy.deepcopy(config), implementation)
    other.load_state_dict(model.state_dict())
    return other
