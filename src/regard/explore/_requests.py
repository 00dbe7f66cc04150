"""Requests and answers of the JSON API; every number has bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Eps = Annotated[float, Field(ge=0.002, le=10, allow_inf_nan=False)]
Mass = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(max_length=60)]


class Strict(BaseModel):
    """An unknown field is an error, so that a misspelled one is not silently ignored."""

    model_config = ConfigDict(extra="forbid")


class Blob(Strict):
    """A bump of the scores on the unit square: its centre, its width and its height."""

    x: Unit
    y: Unit
    size: float = Field(default=0.1, ge=0.02, le=0.5, allow_inf_nan=False)
    height: float = Field(default=3.0, ge=0, le=20, allow_inf_nan=False)


class Box(Strict):
    """A rectangle in the unit square."""

    left: Unit
    top: Unit
    right: Unit
    bottom: Unit


class Play(Strict):
    """Scores on a grid, as a sum of blobs, and the settings of the maps and densities."""

    blobs: list[Blob] = Field(min_length=1, max_length=8)
    cells: int = Field(default=14, ge=2, le=24, description="cells along a side of the grid")
    alpha: float = Field(default=1.5, ge=1, le=4, allow_inf_nan=False, description="of entmax")
    gamma: float = Field(default=0.1, ge=0, le=2, allow_inf_nan=False, description="of TVmax")
    functions: int = Field(default=10, ge=2, le=16, description="basis functions along a side")
    components: int = Field(default=2, ge=1, le=5, description="K of the mixture")
    eps: Eps = Field(default=0.1, description="of Sinkhorn")
    chosen: int = Field(default=0, ge=0, le=7, description="the blob whose share Sinkhorn shows")
    box: Box | None = None


class Points(Strict):
    """Two sets of points on the unit square."""

    kind: Literal["points"]
    x: list[tuple[Unit, Unit]] = Field(min_length=1, max_length=32)
    y: list[tuple[Unit, Unit]] = Field(min_length=1, max_length=32)
    eps: Eps = 0.05
    ladder: bool = Field(default=True, description="also return the distance at decreasing eps")


class Histograms(Strict):
    """Two histograms on the same bins of the unit interval."""

    kind: Literal["histograms"]
    a: list[Mass] = Field(min_length=2, max_length=32)
    b: list[Mass] = Field(min_length=2, max_length=32)
    eps: Eps = 0.05
    ladder: bool = Field(default=True, description="also return the distance at decreasing eps")


class Batch(Strict):
    """A batch of directions in uneven clusters, to be assigned to prototypes, as SwAV does."""

    samples: int = Field(default=48, ge=2, le=128)
    prototypes: int = Field(default=6, ge=2, le=16)
    eps: Eps = 0.05
    iterations: int = Field(default=3, ge=1, le=200)
    seed: int = Field(default=0, ge=0, le=9999)


class LookAt(Strict):
    """One place of a picture, and how what it looks at is drawn and measured."""

    place: tuple[Unit, Unit] | None = Field(
        default=None, description="across and down; null for the class token, or the middle where there is none"
    )
    layer: int = Field(default=-1, ge=-1, le=9999, description="of the model; -1 is the last")
    head: int | None = Field(default=None, ge=0, le=9999, description="null for the mean of all heads")
    alpha: float = Field(default=1.5, ge=1, le=4, allow_inf_nan=False, description="of entmax")
    gamma: float = Field(default=0.1, ge=0, le=2, allow_inf_nan=False, description="of TVmax")
    scale: float = Field(default=1.0, ge=0.1, le=50, allow_inf_nan=False, description="of scores without a model")
    outline: list[tuple[Unit, Unit]] = Field(default=[], max_length=64, description="corners of a region")
    exchange: bool = Field(default=False, description="also run the model with entmax in every attention")


class Columns(Strict):
    """Numbers of several pictures, by the name of what was measured."""

    columns: dict[Name, Annotated[list[Unit], Field(min_length=1, max_length=1000)]] = Field(
        min_length=1, max_length=32, description="of each column one number per picture"
    )


Short = Annotated[str, StringConstraints(max_length=300)]


class Answer(BaseModel):
    """What `regard ask --json` prints."""

    model_config = ConfigDict(extra="allow")

    question: Short
    answer: str
    score: float = Field(description="of the answer, between 0 and 1; scores of several answers do not sum to one")
    top: list[Any] = Field(description="the best answers with their scores")
    attention: str
    weights: list[list[float]] = Field(description="discrete weights on the grid of cells")
    effective_weights: list[list[float]] = Field(description="what each cell contributed")
    density: dict[str, Any] | None = Field(description="family, and components with share, mean and covariance")
    entropy: float = Field(description="bits; 0 is even attention")
    support_area: float = Field(description="share of the picture with any attention")
    half_area: float = Field(description="the smallest share of the picture that holds half of the attention")
    words: list[Any] = Field(description="of the question: weight, and role: content, function or unknown")
    seconds: float


class Trouble(BaseModel):
    """What went wrong, in one line."""

    error: str
    unknown: list[str] | None = Field(default=None, description="the words of a question of which none is known")
    known: list[str] | None = Field(default=None, description="some words that the model knows")
