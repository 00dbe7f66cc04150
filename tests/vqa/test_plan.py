"""The length of a training, by the settings or by the data."""

from hypothesis import given
from hypothesis import strategies as st

from regard.vqa.plan import ENOUGH_STEPS, FEWEST_EPOCHS, MOST_EPOCHS, TrainingPlan
from regard.vqa.settings import TrainSettings, small_training


@given(questions=st.integers(1, 10**6), per_picture=st.integers(1, 20))
def test_epochs_by_the_data_give_about_the_same_number_of_steps(questions, per_picture):
    samples = -(-questions // per_picture)
    plan = TrainingPlan.of(small_training(), questions, samples)
    assert FEWEST_EPOCHS <= plan.epochs <= MOST_EPOCHS
    assert plan.steps == plan.epochs * plan.per_epoch
    if FEWEST_EPOCHS < plan.epochs < MOST_EPOCHS:
        assert ENOUGH_STEPS <= plan.steps < ENOUGH_STEPS + plan.per_epoch
    assert plan.per_epoch >= 1


def test_epochs_that_were_asked_for_are_kept():
    assert TrainingPlan.of(small_training(epochs=3), 120, 60).epochs == 3
    assert TrainingPlan.of(TrainSettings(), 440_000, 440_000).epochs == 13


def test_few_questions_and_few_steps_are_said_to_be_few():
    few = TrainingPlan.of(small_training(epochs=2), 120, 120)
    assert few.steps == 2 * 1
    assert "120 questions and 2 steps are few" in few.warning
    assert TrainingPlan.of(small_training(), 6000, 1500).warning is None
    assert TrainingPlan.of(small_training(), 200, 100).warning is not None
