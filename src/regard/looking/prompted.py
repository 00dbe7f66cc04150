"""A model of pictures and text, asked about a picture: what the token before its answer looks at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from regard._problem import Problem
from regard.hf import Recording, watch
from regard.looking.model import LIKELIEST, LookingModel
from regard.looking.vision import as_image, resized

#: Models whose tokens of a picture are its patches, or squares of these.
PROMPTED = ("llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")


@final
@dataclass(frozen=True)
class PromptedModel(LookingModel):
    """A model, its tokenizer and image processor, and what it is asked.

    `prompt`: words; with the model's own token of a picture in them, the whole prompt as it is.
    """

    query: ClassVar[str | Sequence[int]] = (-1,)
    model: Any
    tokenizer: Any
    image_processor: Any
    prompt: str

    def run(self, picture: Tensor, **how: Any) -> tuple[Recording, dict[str, float]]:
        """What the attentions of the language model saw, and the likeliest first words of the answer."""
        inputs = self.inputs(picture)
        decoder = self.model.get_decoder()
        name = next(name for name, module in self.model.named_modules() if module is decoder)
        with torch.no_grad(), watch(self.model, layers=rf"^{re.escape(name)}\.", **how) as seen:
            logits = self.model(**inputs, use_cache=False).logits[0, -1]
        top = logits.float().softmax(-1).topk(min(LIKELIEST, len(logits)))
        answers: dict[str, float] = {}
        for share, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            word = self.tokenizer.decode([token])
            answers[word if word not in answers else f"{word} ({token})"] = share
        return seen, answers

    def inputs(self, picture: Tensor) -> dict[str, Tensor]:
        """What the model is called with: the prompt, with as many tokens for the picture as it has patches."""
        config = self.model.config
        side = getattr(config.vision_config, "image_size", None)
        if side is not None:  # from edge to edge: what the processor would crop is not lost
            height, width = (side, side) if isinstance(side, int) else side
            picture = (resized(picture, (int(height), int(width))) * 255).round().byte()
        pixels = dict(self.image_processor(images=[as_image(picture)], return_tensors="pt"))
        pixels["pixel_values"] = pixels["pixel_values"].to(self.model.dtype)
        text = self.text()
        begins = bool(self.tokenizer.bos_token) and text.startswith(self.tokenizer.bos_token)
        ids = self.tokenizer(text, add_special_tokens=not begins)["input_ids"]
        token, count = config.image_token_id, self._tokens_of(pixels)
        if ids.count(token) != 1:
            raise Problem(
                f"the prompt {text!r} has the token of a picture, {self._token(token)!r}, {ids.count(token)} times; "
                "expected once. Leave it out: it is put before the words."
            )
        place = ids.index(token)
        row = torch.tensor([ids[:place] + [token] * count + ids[place + 1 :]])
        if "image_grid_thw" in pixels:
            pixels["mm_token_type_ids"] = (row == token).int()
        return {"input_ids": row, "attention_mask": torch.ones_like(row), **pixels}

    def text(self) -> str:
        """The prompt with the token of a picture, as the model's template writes a question of a user."""
        config = self.model.config
        token = self._token(config.image_token_id)
        if token in self.prompt:
            return self.prompt
        if self.tokenizer.chat_template is not None:
            content = [{"type": "image"}, {"type": "text", "text": self.prompt}]
            said = [{"role": "user", "content": content}]
            return str(self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
        ends = (getattr(config, f"vision_{end}_token_id", None) for end in ("start", "end"))
        before, after = ("" if end is None else self._token(end) for end in ends)
        return f"{before}{token}{after}\n{self.prompt}"

    def _token(self, number: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(number))

    def _tokens_of(self, pixels: dict[str, Tensor]) -> int:
        """How many tokens a picture has."""
        config = self.model.config
        if "image_grid_thw" in pixels:
            return int(pixels["image_grid_thw"].prod()) // int(config.vision_config.spatial_merge_size) ** 2
        height, width = pixels["pixel_values"].shape[-2:]
        side = int(config.vision_config.patch_size)
        patches = height // side * (width // side)
        return patches + 1 if config.vision_feature_select_strategy == "full" else patches
