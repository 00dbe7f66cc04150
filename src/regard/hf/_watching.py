"""`watch`: what every attention of a model of transformers looks at, recorded while the model runs."""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard import _check
from regard._install import install_extra
from regard.attention.lazy import LazyWeights
from regard.attention.summaries import USUAL, AttentionSummary, summary_of, summary_of_weights
from regard.hf._layouts import Layouts, Said
from regard.hf._reach import calls_interface, reach
from regard.hf._scores import Read, multihead_weights, weights_of_call
from regard.hf._seen import Recording, Seen
from regard.hf._tokens import Tokens

_LOCK = threading.Lock()


class watch:
    """Record what every attention of a Hugging Face model does, while it runs as it always does.

    `model`: any model of transformers, with any `attn_implementation`: eager, SDPA, regard's. It is not changed, and
    its outputs are those without `watch`, bit for bit.
    `want`, `top`: which summaries, as in `regard.summarize`: (B, H, ...) for each attention; default its usual ones.
    `rows`: queries whose weights are wanted whole: places, or a kind of token such as "cls"; the one query of a pooling
    head counts as any kind; default None.
    `regions`: boolean masks (M, H, W) of the picture: the mass of each query in each of them, for attentions that see
    patches; default None.
    `layers`: a regular expression that the name of a module must contain, such as "vision"; default all.
    `tokens`: what the tokens are, for models that `watch` does not know: `Tokens`, a function from their number such
    as `Tokens.text`, or a dict of these by the beginning of a module's name; default None.
    `read`: for attentions with code of their own: a dict from the name of a class to a function of (module, args,
    kwargs) that returns `regard.LazyWeights`; default None.
    `keep`: keep queries and keys, so that `Recording.rollout` and other questions can be answered afterwards; their
    memory grows with the number of layers; default False.

    The block gets a `Recording`: one `Seen` for each call of an attention. Memory grows with the number of tokens, not
    with its square, unless the model's own attention does. Nothing recorded has a gradient. Under eager attention in
    training, weights are those after dropout; what gradient checkpointing computes again is seen again. A call inside
    `torch.compile` is not seen: a block in which nothing was seen ends with a warning.

    >>> import torch
    >>> from transformers import AutoModel, ViTConfig
    >>> sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
    >>> model = AutoModel.from_config(ViTConfig(**sizes, image_size=32, patch_size=8)).eval()
    >>> with watch(model, rows="cls") as seen:
    ...     out = model(torch.randn(1, 3, 32, 48), interpolate_pos_encoding=True)
    >>> seen[0].name, seen[0].tokens.kinds, seen[0].summary.entropy.shape
    ('layers.0.attention', ('cls', 'patch'), torch.Size([1, 4, 25]))
    >>> seen[1].pictures(seen[1].summary.rows).shape  # layer 1: heads, the query, the grid of 4 x 6 patches
    torch.Size([1, 4, 1, 4, 6])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        want: Sequence[str] = USUAL,
        top: int = 0,
        rows: str | Sequence[int] | None = None,
        regions: Tensor | None = None,
        layers: str | None = None,
        tokens: Said | None = None,
        read: Mapping[str, Read] | None = None,
        keep: bool = False,
    ) -> None:
        """Look at the model: an error if an attention or its tokens are not known."""
        if not hasattr(model, "named_modules") or not hasattr(model, "config"):
            remedy = "Pass the model itself, not its processor or a pipeline (which has it as .model)."
            _check.complain("model", type(model).__name__, "a model of transformers", remedy, TypeError)
        if regions is not None and (regions.dim() != 3 or regions.dtype != torch.bool):
            got = f"{regions.dtype} of shape {tuple(regions.shape)}"
            _check.complain("regions", got, "boolean masks (M, H, W)", "Stack masks of the size of the picture.")
        self.model, self.keep = model, keep
        self.want, self.top, self.rows, self.regions = want, top, rows, regions
        self._readers: dict[str, Read] = {"MultiheadAttention": multihead_weights, **(read or {})}
        self._modules = dict(model.named_modules())
        names = self._watched_names(layers)
        self._layouts = Layouts(model, names, tokens)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._names = {id(self._modules[name]): name for name in names}
        self._handles: list[Any] = []
        self._seen = Recording([])
        self._inside = False

    def __enter__(self) -> Recording:
        """Begin to record."""
        if self._inside:
            _check.complain("watch", "the same one, inside its block", "one that is not", "Make another: watch(model).")
        self._inside = True
        self._seen = Recording([])
        self._handles = self._layouts.prepare()
        for name in self._numbers:
            if (reader := self._reader(name)) is not None:
                hook = functools.partial(self._see_own, reader)
                self._handles.append(self._modules[name].register_forward_pre_hook(hook, with_kwargs=True))
        _install(self)
        return self._seen

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop recording, and leave no hook behind."""
        _uninstall(self)
        for handle in self._handles:
            handle.remove()
        self._handles, self._inside = [], False
        if kind is None and not self._seen:
            why = "it did not run in this block, or only inside torch.compile, which nobody can watch"
            warnings.warn(f"regard.hf.watch has seen no attention of {type(self.model).__name__}: {why}.", stacklevel=2)

    def _watched_names(self, layers: str | None) -> list[str]:
        """The attentions to watch; an error if one of them has code that is not known."""
        found = {name for names in reach(self.model) for name in names}
        names = [name for name in self._modules if name in found and (layers is None or re.search(layers, name))]
        if not names:
            expected = "attentions" if layers is None else f"attentions whose names match {layers!r}"
            _check.complain("model", type(self.model).__name__, expected, "model.named_modules() has all names.")
        unknown = [n for n in names if self._reader(n) is None and not calls_interface(type(self._modules[n]))]
        if unknown:
            kinds = sorted({type(self._modules[name]).__name__ for name in unknown})
            _check.complain(
                "model",
                f"{len(unknown)} attentions with code of their own: {', '.join(kinds)} (the first is {unknown[0]!r})",
                "attentions that transformers calls by attn_implementation, or torch's MultiheadAttention",
                f'Say how their weights are made: watch(model, read={{"{kinds[0]}": function}}), where '
                "function(module, args, kwargs) returns regard.LazyWeights(q, k, ...); or leave them out by layers=.",
            )
        return names

    def _reader(self, name: str) -> Read | None:
        return self._readers.get(type(self._modules[name]).__name__)

    def sees(self, module: nn.Module) -> bool:
        """Whether calls of a module are recorded."""
        return id(module) in self._names

    def see(
        self, implementation: str, function: Any, module: nn.Module, made: Any, *given: Any, **keywords: Any
    ) -> None:
        """Record one call of an attention function of transformers.

        `implementation`, `function`: its name and itself.
        `module`: the attention that called it.
        `made`: the context and the weights, if any, that it returned.
        `given`, `keywords`: its arguments after the module.
        """
        with torch.no_grad():
            weights = weights_of_call(implementation, function, module, made, *given, **keywords)
            self._record(module, weights)

    def _see_own(self, reader: Read, module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Record one call of an attention with code of its own."""
        with torch.no_grad():
            self._record(module, reader(module, given, keywords))

    def _record(self, module: nn.Module, weights: LazyWeights | Tensor) -> None:
        name = self._names[id(module)]
        batch, _, queries, keys = weights.shape
        tokens = self._layouts.by_name[name].tokens(batch, queries, keys)
        how: dict[str, Any] = {
            "want": self.want,
            "top": min(self.top, keys),
            "rows": self._places(tokens[0], queries, keys),
        }
        if self.regions is not None and tokens[0].grid is not None:
            how["regions"] = self._shares(tokens, batch).to(weights.device)
        summary: AttentionSummary
        if isinstance(weights, Tensor):
            summary = summary_of_weights(weights, **how)
        else:
            weights = weights.detached()
            summary = summary_of(weights, **how)
        self._seen.append(Seen(name, self._numbers[name], summary, tokens, weights if self.keep else None))

    def _places(self, tokens: Tokens, queries: int, keys: int) -> list[int] | None:
        """The wanted queries that are there."""
        if self.rows is None:
            return None
        if not isinstance(self.rows, str):
            return [place for place in self.rows if -queries <= place < queries] or None
        if queries == 1 < keys and tokens.windows is None:
            return [0]
        return ([p for p in tokens.places(self.rows) if p < queries] if queries == keys else []) or None

    def _shares(self, tokens: tuple[Tokens, ...], batch: int) -> Tensor:
        """The regions as shares of keys, (B or 1, 1, M, L)."""
        shares = torch.stack([one.shares(self.regions) for one in tokens])  # type: ignore[arg-type]
        if tokens[0].windows is None:
            return shares[:, None]
        return shares[0].repeat(batch // tokens[0].windows.count, 1, 1)[:, None]


def _install(watcher: watch) -> None:
    """Have transformers hand out attention functions that tell the watcher what they were called with."""
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise ImportError(f"regard.hf needs transformers >= 5.16: {install_extra('hf')}") from error
    with _LOCK:
        installed: Any = AttentionInterface.get_interface
        if not hasattr(installed, "watchers"):
            installed = _observing(installed)
            AttentionInterface.get_interface = installed  # type: ignore[method-assign]
        installed.watchers.append(watcher)


def _uninstall(watcher: watch) -> None:
    """The last watcher restores what transformers had."""
    from transformers import AttentionInterface

    with _LOCK:
        installed: Any = AttentionInterface.get_interface
        installed.watchers.remove(watcher)
        if not installed.watchers:
            AttentionInterface.get_interface = installed.__wrapped__  # type: ignore[method-assign]


def _observing(original: Callable[..., Any]) -> Any:
    """`AttentionInterface.get_interface`, with functions that are observed."""

    @functools.wraps(original)
    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = original(self, attn_implementation, default)
        if torch.compiler.is_compiling():
            return function

        @functools.wraps(function)
        def observed(module: nn.Module, *given: Any, **keywords: Any) -> Any:
            made = function(module, *given, **keywords)
            for watcher in tuple(get_interface.watchers):  # type: ignore[attr-defined]
                if watcher.sees(module):
                    watcher.see(attn_implementation or "eager", function, module, made, *given, **keywords)
            return made

        return observed

    get_interface.watchers = []  # type: ignore[attr-defined]
    return get_interface
