"""regard's attentions in Hugging Face models: `register()`, then `attn_implementation="regard_sparsemax"`.

Every model that takes its attention from transformers' `AttentionInterface` can use them: encoders, decoders with a
cache and grouped queries, vision models. Padding, causal and windowed masks come from the model's own mask code. Models
with attention code of their own keep it, with a warning: see `check`, and docs/hf-models.md for every architecture.

    regard_softmax      softmax, the same numbers as the model's own
    regard_sparsemax    sparsemax
    regard_entmax15     entmax with alpha = 1.5
    regard_entmax       entmax with one learned alpha per head: see `learn_alpha`
    regard_sigmoid      a sigmoid of each score minus log n, for n keys that a query sees: no sum is fixed
    regard_sinkhorn     doubly stochastic, for models that are not causal
    regard_w2           softmax of minus squared Wasserstein distances: heads are [mean, scale] of Gaussians
    regard_continuous_softmax, regard_continuous_sparsemax
                        for vision transformers: each query has a density over the grid of patches, a Gaussian or a
                        truncated paraboloid, and weights on the tokens before them (class, registers, distillation)

`watch(model)` records what every attention of a model looks at, whatever its `attn_implementation`.
"""

from __future__ import annotations

from torch import nn

from regard._install import install_extra
from regard.hf import _watch
from regard.hf._alpha import learn_alpha
from regard.hf._attention import attentions
from regard.hf._continuous import continuous_attentions
from regard.hf._masks import float_mask
from regard.hf._reach import Reach, reach
from regard.hf._seen import Recording, Seen
from regard.hf._tokens import Span, Tokens, Windows
from regard.hf._watching import watch

__all__ = ["Recording", "Seen", "Span", "Tokens", "Windows", "check", "learn_alpha", "register", "watch"]


def register() -> tuple[str, ...]:
    """Register regard's attentions with transformers, and return their names. Idempotent.

    A model with attention code of its own that is created with such a name gives a warning, or an error with the names
    that it knows; so does a model that has not called regard by the end of its first forward pass.

    >>> from transformers import AutoModel, BertConfig
    >>> register()[:4]
    ('regard_softmax', 'regard_sparsemax', 'regard_entmax15', 'regard_entmax')
    >>> config = BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=100)
    >>> model = AutoModel.from_config(config, attn_implementation="regard_sparsemax")
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(f"regard.hf needs transformers >= 5.16: {install_extra('hf')}") from error
    functions = attentions() | continuous_attentions()
    for name, attention in functions.items():
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, float_mask)
    _watch.install()
    return tuple(functions)


def check(model: nn.Module) -> Reach:
    """Which attentions of a model call regard: names of modules `reached`, and of those `missed`.

    A module is missed if it computes attention by code of its own, whatever its `attn_implementation` says, or if its
    configuration names another attention. This inspects the code of the modules and runs nothing.

    >>> from transformers import AutoModel, BertConfig
    >>> names = register()
    >>> config = BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=100)
    >>> check(AutoModel.from_config(config, attn_implementation="regard_sparsemax"))
    Reach(reached=['encoder.layer.0.attention.self'], missed=[])
    >>> check(AutoModel.from_config(config, attn_implementation="sdpa"))
    Reach(reached=[], missed=['encoder.layer.0.attention.self'])
    """
    return reach(model)
