"""A model from a folder or the local cache of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard._install import install_extra
from regard._problem import Problem
from regard.looking.model import LookingModel
from regard.looking.prompted import PROMPTED, PromptedModel
from regard.looking.vision import GREY, PatchTower, VisionModel, tower_of


def load_looking(name: str, *, prompt: str | None = None, tower: bool = False, download: bool = False) -> LookingModel:
    """The model in a folder, or under a name in the local cache of Hugging Face.

    `name`: a folder that `save_pretrained` wrote, or a name such as "facebook/dinov2-small".
    `prompt`: what a model of pictures and text is asked about the picture; default None, for a model of pictures.
    `tower`: of a model of pictures and text, its vision tower alone; default False.
    `download`: whether a model that is not here may be downloaded; default False.
    """
    transformers, here = _transformers(), {"local_files_only": not download}
    with _loading(name, download):
        _check_prompt(name, transformers.AutoConfig.from_pretrained(name, **here), prompt, tower)
        if prompt is not None:
            model = transformers.AutoModelForImageTextToText.from_pretrained(name, **here).eval()
            return PromptedModel(model, *_processors(transformers, name, here), prompt)
    return load_vision(name, download=download)


def load_vision(name: str, *, download: bool = False) -> LookingModel:
    """The vision model under a name, as `load_looking`; of a model that has text beside pictures, its vision tower."""
    transformers, here = _transformers(), {"local_files_only": not download}
    with _loading(name, download):
        config = transformers.AutoConfig.from_pretrained(name, **here)
        model = tower_of(_class_of(transformers, config).from_pretrained(name, **here)).eval()
        if hasattr(model.config, "spatial_merge_size"):
            return PatchTower(model, transformers.AutoImageProcessor.from_pretrained(name, **here))
    return VisionModel.of(model, *_colours(name, here))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise Problem(f"regard look needs transformers: {install_extra('hf')}") from error
    return transformers


@contextmanager
def _loading(name: str, download: bool) -> Iterator[None]:
    """Errors of transformers in one line."""
    try:
        yield
    except Problem:
        raise
    except (OSError, ValueError) as error:
        what = "a folder of a saved model" if Path(name).exists() else "in the local cache of Hugging Face"
        advice = "" if download else f" To fetch it: regard look {name} PICTURE --download"
        reason = str(error).strip().split("\n")[0]
        raise Problem(f"{name} is not {what}, or transformers cannot load it: {reason}{advice}") from error


def _check_prompt(name: str, config: Any, prompt: str | None, tower: bool) -> None:
    """A model of pictures and text has a prompt, or is asked for its tower; another has neither."""
    kind = config.model_type
    mixes = getattr(config, "image_token_id", None) is not None and hasattr(config, "vision_config")
    if not mixes and (prompt is not None or tower):
        option = "--tower" if prompt is None else "--prompt"
        raise Problem(
            f"{option} is for models of pictures and text, and {name} ({kind}) sees pictures alone. Leave it out."
        )
    if mixes and prompt is None and not tower:
        raise Problem(
            f"{name} ({kind}) is a model of pictures and text: --prompt TEXT asks it about the picture, and shows what "
            "the token before its answer looks at; --tower looks at its vision tower alone."
        )
    if prompt is not None and tower:
        raise Problem("--prompt with --tower: the vision tower takes no words. Leave one of them out.")
    if prompt is not None and kind not in PROMPTED:
        raise Problem(
            f"{name} is a {kind}, and --prompt knows {', '.join(PROMPTED)}. --tower looks at its vision tower; "
            "regard.hf.watch watches any model with inputs that you make."
        )
    if prompt is not None and not prompt.strip():
        raise Problem(f"--prompt {prompt!r} has no words.")


def _class_of(transformers: Any, config: Any) -> Any:
    if config.model_type == "qwen2_vl_vision":  # the one tower that AutoModel has not
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

        return Qwen2VisionTransformerPretrainedModel
    classifies = any("ForImageClassification" in kind for kind in config.architectures or ())
    return transformers.AutoModelForImageClassification if classifies else transformers.AutoModel


def _processors(transformers: Any, name: str, here: dict[str, bool]) -> tuple[Any, Any]:
    """The tokenizer and the image processor beside a model; the whole processor may need torchvision, for videos."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **here)
    if not tokenizer("a")["input_ids"]:
        raise Problem(f"{name} has no tokenizer beside the model. Save it there: processor.save_pretrained(folder).")
    return tokenizer, transformers.AutoImageProcessor.from_pretrained(name, **here)


def _colours(name: str, here: dict[str, bool]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the colours that a model was trained on; grey if it does not say."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(name, **here)
    except (OSError, ValueError):
        return GREY, GREY
    return tuple(settings.get("image_mean") or GREY), tuple(settings.get("image_std") or GREY)
