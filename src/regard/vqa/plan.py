"""How long a training is: epochs by the amount of data, steps, batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.vqa.settings import TrainSettings

ENOUGH_STEPS = 1000  # updates that the small model needs, when the number of epochs is chosen by the data
FEWEST_EPOCHS, MOST_EPOCHS = 2, 100  # epochs that are chosen
FEW_QUESTIONS, FEW_STEPS = 300, 300  # fewer than these are said to be too few


@dataclass(frozen=True)
class TrainingPlan:
    """The length of a training: `epochs`, updates `per_epoch`, `steps` in all, samples per `batch`.

    A sample is a question, or with `TrainSettings.grouped` a picture with all its questions.

    >>> from regard.vqa.settings import small_training
    >>> TrainingPlan.of(small_training(), questions=6000, samples=1500)
    TrainingPlan(questions=6000, epochs=11, per_epoch=93, batch=16)
    >>> TrainingPlan.of(small_training(epochs=5), questions=100_000, samples=100_000).steps
    7810
    """

    questions: int
    epochs: int
    per_epoch: int
    batch: int

    @classmethod
    def of(cls, settings: TrainSettings, questions: int, samples: int) -> TrainingPlan:
        """The plan for so many questions and samples; epochs by the data if the settings have none."""
        batch = max(1, round(settings.batch * samples / questions))
        per_epoch = max(1, samples // min(batch * settings.accumulate, samples))
        epochs = settings.epochs or min(max(math.ceil(ENOUGH_STEPS / per_epoch), FEWEST_EPOCHS), MOST_EPOCHS)
        return cls(questions, epochs, per_epoch, batch)

    @property
    def steps(self) -> int:
        """Updates of the weights in all."""
        return self.epochs * self.per_epoch

    @property
    def warning(self) -> str | None:
        """In words, that this is too little to learn much from; None if it is not."""
        if self.questions >= FEW_QUESTIONS and self.steps >= FEW_STEPS:
            return None
        return (
            f"{self.questions} questions and {self.steps} steps are few: expect little more than the most frequent "
            "answers. More questions help most, then more --epochs."
        )
