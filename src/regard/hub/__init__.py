"""Models by the conventions of the Hugging Face Hub: `save_pretrained`, `from_pretrained`, `push_to_hub`.

A folder, or a repository on the Hub, holds model.safetensors, config.json and README.md. Nothing in it is code and
nothing is unpickled. huggingface_hub and safetensors are imported on first use.
"""

from regard.hub.card import Card, Section
from regard.hub.model_folder import ModelFolder
from regard.hub.pretrained import Pretrained, PretrainedModule

__all__ = ["Card", "ModelFolder", "Pretrained", "PretrainedModule", "Section"]
