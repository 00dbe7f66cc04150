"""The settings of a model and of its training, and presets; the options of the command line are derived from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from regard import _plain
from regard._problem import Problem
from regard.training._setting import changed, setting
from regard.vqa.inside import LAYER_MAP_NAMES, AffinityName, check_head_width, check_self_attention, layer_map_name
from regard.vqa.kinds import EM_ITERATIONS, NAMES, BasisName, Fitting, PlacementName, SelfAttentionName, parse

ReadsName = Literal["mixed", "own"]  # cells that the output attention reads
ScoresName = Literal["sigmoid", "softmax"]  # from scores of answers to probabilities

LAMBDAS = (10, 100, 500)
"""The thesis' prices of a component, lambda in Tables 6.3 and 6.4, in its own scale: see `price_of`."""


def price_of(penalty: float, cells: int = 14 * 14) -> float:
    """The thesis' lambda in the scale of `ModelSettings.price`: divided by the number of cells.

    The authors' code adds lambda K to minus twice a log-likelihood that is summed over all cells, each counted once
    whatever its weight; here cells count by their weights, which sum to one. Divided by the cells, both penalties are
    per observation.

    >>> [round(price_of(penalty), 3) for penalty in LAMBDAS]
    [0.051, 0.51, 2.551]
    """
    return penalty / cells


def _read_iterations(text: str) -> int | str:
    """The value of the option --em-iterations; what is no number is checked with the other settings."""
    return int(text) if text.isdecimal() else text


@dataclass(frozen=True)
class ModelSettings:
    """A model; the defaults are the thesis' (Table 6.1 and section 6.2), as `--preset thesis`.

    `attention` is the kind of the output attention, a name or a value of `regard.vqa.kinds`, stored as its name; `map`
    and `affinity` are those of the attentions in the layers, by the names in `regard.vqa.inside`.

    >>> ModelSettings(attention="mixture-selected-0.50", map="entmax-1.3").attention
    'mixture-selected-0.5'
    """

    words: int = setting("Width of a word vector.", 300, at_least=1)
    tokens: int = setting("Words of a question that are read; the rest is cut.", 14, at_least=1)
    width: int = setting("Width of the layers.", 512, at_least=1)
    heads: int = setting("Heads of each attention.", 8, at_least=1)
    layers: int = setting("Layers on the question, and as many on the picture.", 6, at_least=0)
    before: int = setting(
        "Layers of self-attention on the picture alone, before the guided ones; the original has none.",
        0,
        at_least=0,
    )
    guided_first: bool = setting(
        "Guided attention comes before self-attention in a layer; in the original after it.", False
    )
    guided_mixes: bool = setting(
        "Cells attend to one another in the guided layers too; without, in the layers before alone, which is quicker.",
        True,
    )
    marks: int = setting(
        "Places that a question marks first, and from which each cell then gets its distance and direction; the "
        "original has none.",
        0,
        at_least=0,
    )
    feed_forward: int = setting("Width of the hidden layer of a feed-forward network.", 2048, at_least=1)
    flat: int = setting("Width of the hidden layer that scores words and cells.", 512, at_least=1)
    fused: int = setting("Width of the vector that the answer is classified from.", 1024, at_least=1)
    dropout: float = setting("Dropout probability in training.", 0.1, at_least=0)
    norm_first: bool = setting("Normalise before each part of a layer, not after it.", False)
    unbiased_norm: bool = setting("Normalise by the unbiased standard deviation, as in the authors' code.", False)
    coordinates: bool = setting("Add coordinates to the cells; the original does not.", False)
    standardise: bool = setting(
        "Scale the channels of features to mean zero and deviation one; the original takes them as they are.", False
    )
    neighbours: bool = setting("Compute a cell's input from its eight neighbours too.", False)
    whiten: bool = setting("Decorrelate the channels of features, not only scale them.", False)
    whiten_width: int | None = setting(
        "Channels up to which features are decorrelated; wider features are only scaled.", None, at_least=1
    )
    reads: ReadsName = setting(
        "What the output attention reads: the cells after self-attention (mixed), as in the original, or each as it is "
        "without the others (own), so that nothing comes from where it does not look.",
        "mixed",
    )
    sums: bool = setting(
        "Add sums over the cells, each by a gate of its score, to the mean that the output attention reads: a mean "
        "cannot count.",
        False,
    )
    scores: ScoresName = setting(
        "What makes probabilities of scores, and is learned: a sigmoid for each answer, as in the original, or one "
        "softmax over all, which takes fewer steps.",
        "sigmoid",
    )
    attention: str = setting("Output attention; regard ask --help lists them.", "discrete-softmax", suggest=NAMES)
    basis: BasisName = setting("Basis functions of a continuous output attention.", "thesis-100")
    padding: bool | None = setting(
        "Surround the picture with zeros in the regression on the basis; none: with the thesis' bases alone.", True
    )
    ridge_penalty: float = setting("Penalty of the regression on the basis.", 0.01)
    placement: PlacementName = setting(
        "Where a cell is on the unit square: its centre, or its corner l/sqrt(L) as in the original.", "corner"
    )
    cell_variance: bool = setting(
        "Add the variance inside a cell to that of the weights; the original adds 1e-6.", False
    )
    price: float = setting(
        "Price of a component where mixture-selected chooses their number, if its name has none; the thesis' lambda "
        "divided by the cells.",
        price_of(LAMBDAS[-1]),
        at_least=0,
    )
    em_iterations: int | str = setting(
        "EM steps of a mixture: a number; usual: 5, or 20 where their number is selected; thesis: 2 for two "
        "components, 5 for more, 20 where their number is selected.",
        "thesis",
        parse=_read_iterations,
        suggest=EM_ITERATIONS,
    )
    map: str = setting(
        "Map of the attentions in the layers: softmax, sparsemax, entmax-1.5, ...; gate, a sigmoid of each distance, "
        "with --affinity wasserstein.",
        "softmax",
        suggest=LAYER_MAP_NAMES,
    )
    affinity: AffinityName = setting(
        "Affinity of the attentions in the layers: a scaled product, a learned bilinear form, a small learned network, "
        "or minus a distance between Gaussians.",
        "dot",
    )
    self_attention: SelfAttentionName = setting(
        "Self-attention of the cells of a picture, in the layers: by --affinity and --map, or a density per cell.",
        "discrete",
    )

    def __post_init__(self) -> None:
        """Check the names, and store them in their standard form."""
        object.__setattr__(self, "attention", str(parse(self.attention)))
        object.__setattr__(self, "map", layer_map_name(self.map, self.affinity))
        check_head_width(self.affinity, self.width, self.heads)
        check_self_attention(self.self_attention, self.layers * self.guided_mixes + self.before)
        if self.marks and not self.layers:
            _plain.complain("marks", self.marks, "0 without guided layers", "Add a layer, or leave the marks out.")
        _plain.choice("reads", self.reads, get_args(ReadsName))
        _plain.choice("scores", self.scores, get_args(ScoresName))
        _plain.choice("basis", self.basis, get_args(BasisName))
        _plain.choice("placement", self.placement, get_args(PlacementName))
        _plain.number("ridge_penalty", self.ridge_penalty, above=0)
        if self.whiten and not self.standardise:
            expected = "False with standardise=False"
            _plain.complain("whiten", True, expected, "Features that are decorrelated are also scaled.")
        _ = self.fitting  # checks its numbers

    @property
    def fitting(self) -> Fitting:
        """How mixtures are fitted."""
        return Fitting(self.price, self.em_iterations)

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> ModelSettings:
        """The settings of a stored model; what its file lacks has the value from before there was that setting.

        >>> ModelSettings.from_json({"width": 64}) == full(width=64)
        True
        """
        return cls(**(_BEFORE | written))

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


# What differs from the thesis in the other presets: also what models had before each of these was a setting.
_BEFORE: dict[str, Any] = {
    "coordinates": True,
    "standardise": True,
    "basis": "gaussian",
    "padding": None,
    "ridge_penalty": 0.01,
    "placement": "centre",
    "cell_variance": True,
    "price": 0.1,
    "em_iterations": "usual",
}


def full(**changes: Any) -> ModelSettings:
    """The full preset: the sizes of the thesis, with what is done better here since; docs/guides/presets.md has a list.

    >>> full().width, full().basis, full().coordinates
    (512, 'gaussian', True)
    """
    return ModelSettings(**(_BEFORE | changes))


def small(**changes: Any) -> ModelSettings:
    """The small preset, for scenes and for training on a CPU.

    >>> small(attention="mixture-2").layers
    1
    """
    sizes: dict[str, Any] = {"words": 64, "width": 64, "heads": 4, "layers": 1, "feed_forward": 128, "flat": 64}
    # Without dropout on the weights attention is one fused call. Norms before each part take fewer steps to learn, and
    # so do whitened features: the weak ones of correlated channels, which tell shapes apart, are learned last. In wide
    # features most directions are noise, and amplified to the size of the few that matter: docs/vqa.md has figures.
    quick: dict[str, Any] = {"fused": 128, "dropout": 0.0, "norm_first": True, "neighbours": True}
    quick |= {"whiten": True, "whiten_width": 256}
    return full(**(sizes | quick | changes))


def relations(**changes: Any) -> ModelSettings:
    """The small preset with parts for questions that compare and count objects, learned as one softmax.

    A layer on the picture alone is computed once for all questions about it. Then the question marks four places, and
    cells get where they lie from these, and attend to one another no more: a step costs less than one of layers that
    mix the cells once per question. Sums over cells count.

    >>> relations().before, relations().marks, relations().guided_mixes
    (1, 4, False)
    """
    parts: dict[str, Any] = {"before": 1, "marks": 4, "guided_mixes": False, "sums": True, "scores": "softmax"}
    return small(**(parts | changes))


@dataclass(frozen=True)
class TrainSettings:
    """How to train, and what; the defaults are the thesis' (Table 6.1), as `--preset thesis`."""

    model: ModelSettings = field(default_factory=ModelSettings)
    epochs: int | None = setting(
        "Passes over the data; none: 2 to 100 by the number of questions, for about 1000 steps.", 13, at_least=1
    )
    batch: int = setting("Questions per batch, over all processes.", 64, at_least=1)
    lr: float = setting("Highest learning rate.", 1e-4)
    optimizer: Literal["adam", "muon"] = setting("The optimiser.", "adam")
    schedule: Literal["thesis", "cosine"] = setting(
        "Schedule of the learning rate: as in Table 6.1 of the thesis, or one cosine.", "thesis"
    )
    above: int = setting("Learn answers that were given more often than this.", 8, at_least=0)
    seed: int = setting("Seed of all random numbers.", 0)
    accumulate: int = setting("Batches per update of the weights.", 1, at_least=1)
    clip: float | None = setting("Clip the gradient to this norm.", None)
    patience: int | None = setting("Stop after so many epochs without a better validation accuracy.", None, at_least=1)
    glove: str | None = setting("Initial word vectors: a GloVe text file with vectors as wide as --words.", None)
    anneal: float | None = setting(
        "Share of the training over which a discrete output attention goes from softmax to its own alpha, as sparsemax "
        "has one; other kinds are trained as ever.",
        None,
    )
    grouped: bool = setting(
        "Batch all questions about a picture together, or each by itself; a batch has as many questions.",
        False,
        flags=("--grouped/--single",),
    )

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("epochs", "batch", "accumulate"):
            if name != "epochs" or self.epochs is not None:
                _plain.count(name, getattr(self, name))
        _plain.number("lr", self.lr, above=0)
        _plain.choice("optimizer", self.optimizer, ("adam", "muon"))
        _plain.choice("schedule", self.schedule, ("thesis", "cosine"))
        if self.anneal is not None:
            _plain.number("anneal", self.anneal, above=0)
            if self.anneal > 1:
                _plain.complain("anneal", self.anneal, "a share of the training, at most 1", "Half of it is 0.5.")

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


def full_training() -> TrainSettings:
    """The settings of the thesis for the model of `full`.

    >>> full_training().epochs, full_training().model.standardise
    (13, True)
    """
    return TrainSettings(model=full())


def small_training(**changes: Any) -> TrainSettings:
    """The settings for a CPU: the small model, epochs by the number of questions, a cosine schedule.

    >>> small_training(epochs=3).model.width
    64
    """
    model = changes.pop("model", None) or small()
    preset: dict[str, Any] = {
        "model": model,
        "epochs": None,
        "batch": 64,
        "lr": 2e-3,
        "schedule": "cosine",
        "clip": 64.0,
    }
    return TrainSettings(**(preset | {"optimizer": "muon", "grouped": True} | changes))


def relations_training() -> TrainSettings:
    """The settings for questions that compare and count objects: the model of `relations`, three epochs.

    >>> relations_training().model.before
    1
    """
    return small_training(model=relations(), epochs=3)


TRAIN_PRESETS: dict[str, Callable[[], TrainSettings]] = {
    "thesis": TrainSettings,
    "full": full_training,
    "small": small_training,
    "relations": relations_training,
}
"""The presets by name: functions that return their `TrainSettings`."""


def preset_training(preset: str, **changes: Any) -> TrainSettings:
    """The settings of a preset, "thesis" (Table 6.1), "full", "small" or "relations", with changes, also of its model.

    >>> preset_training("relations", attention="mixture-2", batch=32).epochs
    3
    """
    if preset not in TRAIN_PRESETS:
        raise Problem(f"there is no preset {preset!r}. Choose one of {', '.join(TRAIN_PRESETS)}.")
    return changed(TRAIN_PRESETS[preset](), changes)


def settings_of(config: dict[str, Any]) -> TrainSettings:
    """The settings that a run was trained with, from its config.json."""
    return TrainSettings(model=ModelSettings.from_json(config["model"]), **config["training"])


def thesis_schedule(per_epoch: int) -> Callable[[int], float]:
    """The factor of the learning rate: 1/4, 1/2, 3/4, 1 over the first epochs, a fifth from epoch 10, again from 12.

    Epochs are counted from one, as in Table 6.1.

    >>> factor = thesis_schedule(per_epoch=1)
    >>> [round(factor(step), 3) for step in range(13)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2, 0.04, 0.04]
    """

    def factor(step: int) -> float:
        epoch = step // per_epoch + 1
        return min(epoch / 4, 1.0) * math.prod(0.2 for decay in (10, 12) if epoch >= decay)

    return factor
