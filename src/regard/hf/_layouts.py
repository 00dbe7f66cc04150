"""Which tokens an attention of a known family sees, found while the model runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from regard import _check
from regard.hf._layout import Layout
from regard.hf._merged_layouts import MergedPatchLayout, MergedWindowLayout
from regard.hf._tokens import Span, Tokens, Windows

#: What the caller may say about tokens: of all attentions, or by the beginning of their names; or how to make them.
Said = Tokens | Callable[[int], Tokens] | Mapping[str, "Tokens | Callable[[int], Tokens]"]

_CLS = ("cls",)


def _with_registers(config: Any) -> tuple[str, ...]:
    return (*_CLS, *("register",) * config.num_register_tokens)


#: Kinds of the tokens before the patches, by the type of the model whose one convolution cuts the picture.
PREFIXES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "beit": lambda _: _CLS,
    "clip_vision_model": lambda _: _CLS,
    "deit": lambda _: ("cls", "distillation"),
    "dinov2": lambda _: _CLS,
    "dinov2_with_registers": _with_registers,
    "dinov3_vit": _with_registers,
    "ijepa": lambda _: (),
    "siglip_vision_model": lambda _: (),
    "vit": lambda _: _CLS,
    "vit_msn": lambda _: _CLS,
}


#: Towers whose patches lie in squares that are merged later.
MERGING = ("qwen2_vl_vision", "qwen3_vl_vision")


class SaidLayout(Layout):
    """What the caller said."""

    def __init__(self, said: Tokens | Callable[[int], Tokens]) -> None:
        """Remember it."""
        self.said = said

    def prepare(self) -> list[Any]:
        """There is nothing to follow."""
        return []

    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """As said; an error if the number of keys is another."""
        tokens = self.said if isinstance(self.said, Tokens) else self.said(keys)
        count = tokens.length
        if count != keys:
            remedy = "The tokens before the patches count too: Tokens.picture((h, w), prefix=...)."
            _check.complain("tokens", f"{count} tokens", f"the {keys} keys of this attention", remedy)
        return (tokens,)


class PatchLayout(Layout):
    """Some tokens, and then the patches that one convolution cuts from the picture, each pass."""

    def __init__(self, conv: nn.Module, kinds: tuple[str, ...]) -> None:
        """Follow the convolution; `kinds` are those of the tokens before the patches."""
        self.conv, self.kinds = conv, kinds
        self.grid: tuple[int, int] = (0, 0)

    def prepare(self) -> list[Any]:
        """Look at the output of the convolution."""
        return [self.conv.register_forward_hook(self._note)]

    def _note(self, _: nn.Module, __: Any, patches: Tensor) -> None:
        self.grid = (int(patches.shape[-2]), int(patches.shape[-1]))

    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """Prefix and patches; the pooling heads of some models see the patches alone."""
        height, width = self.grid
        patches = height * width
        if keys not in (patches, patches + len(self.kinds)):
            expected = f"{len(self.kinds)} tokens and then the {height} x {width} patches of a picture"
            _check.complain("tokens", f"{keys} keys", expected, "Say them: watch(model, tokens=Tokens.picture(...)).")
        return (Tokens.picture(self.grid, self.kinds[: keys - patches]),)


class SwinLayout(Layout):
    """The windows of a layer of Swin, shifted in every other layer."""

    def __init__(self, layer: nn.Module) -> None:
        """Follow the layer, which knows window and shift, and is given the grid."""
        self.layer = layer
        self.grid: tuple[int, int] = (0, 0)

    def prepare(self) -> list[Any]:
        """Look at the input of the layer."""
        return [self.layer.register_forward_pre_hook(self._note, with_kwargs=True)]

    def _note(self, _: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        height, width = keywords["input_dimensions"] if "input_dimensions" in keywords else given[1]
        self.grid = (int(height), int(width))

    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """The cells of a window."""
        side, shift = int(self.layer.window_size), int(self.layer.shift_size)  # type: ignore[arg-type]
        return (Tokens((Span("patch", 0, keys),), Windows(self.grid, side, shift)),)


class TextLayout(Layout):
    """Words; inside a model of pictures and text, also the tokens that stand for a picture."""

    def __init__(self, whole: nn.Module | None = None, merge: int = 1, conv: nn.Module | None = None) -> None:
        """Follow the inputs of `whole`, if it mixes pictures and text.

        `whole`: the model whose `input_ids` have the tokens of pictures; default None.
        `merge`: patches per token, along a side, of grids that the caller passes; default 1.
        `conv`: cuts pictures into as many patches as a picture has tokens; default None.
        """
        self.whole, self.merge, self.conv = whole, merge, conv
        self.cut: tuple[int, int] | None = None
        self.prompt: tuple[Tokens, ...] = ()

    def prepare(self) -> list[Any]:
        """Look at the inputs of the whole model, and at its patches."""
        handles: list[Any] = []
        if self.conv is not None:
            handles.append(self.conv.register_forward_hook(self._note_cut))
        if self.whole is not None:
            handles.append(self.whole.register_forward_pre_hook(self._note_ids, with_kwargs=True))
        return handles

    def _note_cut(self, _: nn.Module, __: Any, patches: Tensor) -> None:
        self.cut = (int(patches.shape[-2]), int(patches.shape[-1]))

    def _note_ids(self, whole: Any, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ids = keywords.get("input_ids", given[0] if given else None)
        cache = keywords.get("past_key_values")
        if not isinstance(ids, Tensor) or (cache is not None and cache.get_seq_length() > 0):
            return  # a step of a generation: its prompt is known
        picture = whole.config.image_token_id
        sizes = keywords.get("image_grid_thw")
        self._grids = iter([] if sizes is None else [(int(h), int(w)) for _, h, w in sizes.tolist()])
        self.prompt = tuple(self._spans((row == picture).tolist(), sizes is not None) for row in ids)

    def _spans(self, is_picture: list[bool], with_sizes: bool) -> Tokens:
        spans, start = [], 0
        for seen, run in itertools.groupby(is_picture):
            stop = start + len(list(run))
            size = next(self._grids, None) if seen and with_sizes else None
            grid = None if size is None else (size[0] // self.merge, size[1] // self.merge)
            spans.append(Span("image" if seen else "text", start, stop, grid))
            start = stop
        return Tokens(tuple(spans))

    def tokens(self, batch: int, queries: int, keys: int) -> tuple[Tokens, ...]:
        """The prompt, and then text; all text, where there are no pictures."""
        if not self.prompt or len(self.prompt) != batch:
            return (Tokens.text(keys),)
        return tuple(self._continued(tokens, keys) for tokens in self.prompt)

    def _continued(self, tokens: Tokens, keys: int) -> Tokens:
        spans = [part for span in tokens.spans if span.stop <= keys for part in self._with_cut(span)]
        length = spans[-1].stop if spans else 0
        if length < keys:
            start = spans.pop().start if spans and spans[-1].kind == "text" else length
            spans.append(Span("text", start, keys))
        return Tokens(tuple(spans))

    def _with_cut(self, span: Span) -> list[Span]:
        """A picture whose patches, from the convolution of this pass, are its tokens, all or after a class token."""
        if span.kind != "image" or span.grid is not None or self.cut is None:
            return [span]
        start = span.stop - self.cut[0] * self.cut[1]
        if start not in (span.start, span.start + 1):
            return [span]
        before = [span._replace(stop=start)] if start > span.start else []
        return [*before, span._replace(start=start, grid=self.cut)]


def cutting_convolutions(model: nn.Module) -> Iterator[nn.Conv2d]:
    """The convolutions that cut pictures into patches."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride and min(module.kernel_size) > 1:
            yield module


class Layouts:
    """The layouts of all attentions of a model, by their names."""

    def __init__(self, model: nn.Module, names: list[str], said: Said | None) -> None:
        """Find them; an error names the first attention whose tokens are not known, and how to say them."""
        self.modules = dict(model.named_modules())
        self.by_name: dict[str, Layout] = {}
        shared: dict[Any, Layout] = {}
        for name in names:
            made = self._layout(name, said)
            self.by_name[name] = shared.setdefault(_key_of(made), made)

    def prepare(self) -> list[Any]:
        """Add the hooks of all; their handles."""
        distinct = {id(layout): layout for layout in self.by_name.values()}
        return [handle for layout in distinct.values() for handle in layout.prepare()]

    def _layout(self, name: str, said: Said | None) -> Layout:
        if isinstance(said, Mapping):
            beginning = next((part for part in said if name == part or name.startswith(f"{part}.")), None)
            if beginning is not None:
                return SaidLayout(said[beginning])
        elif said is not None:
            return SaidLayout(said)
        tower = next(module for module in self._above(name) if hasattr(module, "input_modalities"))
        config: Any = getattr(self.modules[name], "config", None) or tower.config
        kind = str(getattr(config, "model_type", ""))
        if kind == "swin":
            return SwinLayout(self.modules[name.rpartition(".")[0]])
        if kind in MERGING:
            return MergedPatchLayout(tower, int(config.spatial_merge_size))
        if kind == "qwen2_5_vl_vision":
            return MergedWindowLayout(tower, self.modules[name], config)
        modalities = tower.input_modalities
        if modalities == "text" or tuple(modalities) == ("text",):  # type: ignore[arg-type]
            return self._text(name)
        conv = next((conv for above in self._above(name) for conv in cutting_convolutions(above)), None)
        if kind in PREFIXES and conv is not None:
            return PatchLayout(conv, PREFIXES[kind](config))
        return self._unknown(name, kind)

    def _text(self, name: str) -> Layout:
        """Words, also in the part of a larger model that mixes them with pictures."""
        configs = {above: getattr(above, "config", None) for above in self._above(name)}
        mixing = [above for above, config in configs.items() if getattr(config, "image_token_id", None) is not None]
        if not mixing:
            return TextLayout()
        whole = mixing[-1]
        vision = getattr(configs[whole], "vision_config", None)
        merge = int(getattr(vision, "spatial_merge_size", 1))
        return TextLayout(whole, merge, next(cutting_convolutions(whole), None))

    def _above(self, name: str) -> Iterator[nn.Module]:
        """The modules that contain one, the smallest first."""
        while name:
            name = name.rpartition(".")[0]
            yield self.modules[name]

    def _unknown(self, name: str, kind: str) -> Layout:
        known = ", ".join(sorted((*PREFIXES, "swin", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")))
        first = name.split(".")[0]
        _check.complain(
            "model",
            f"{kind or type(self.modules[name]).__name__!r}, whose tokens are not known, at {name}",
            f"a model of text, or one of {known}",
            f'Say what the keys are: watch(model, tokens={{"{first}": Tokens.picture((height, width), prefix=1)}}), '
            "tokens=Tokens.text for a plain sequence, or leave it out by layers=.",
        )


def _key_of(layout: Layout) -> Any:
    """Equal for layouts that follow the same module: one of them is enough."""
    followed = [x for x in vars(layout).values() if isinstance(x, nn.Module)]
    return (type(layout), *map(id, followed)) if followed and not isinstance(layout, MergedPatchLayout) else id(layout)
