"""The public names of regard.vqa, imported when the first of them is used."""

from regard.vqa.accuracy import Accuracy, mean_accuracy, normalise, soft_target, vqa_accuracy
from regard.vqa.description import FeatureDescription
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.kinds import Continuous, Discrete, MixtureOf, MixtureSelected
from regard.vqa.own import hold_out
from regard.vqa.predict import Prediction, Predictor
from regard.vqa.read import read_questions, write_results

__all__ = [
    "Accuracy",
    "Continuous",
    "Discrete",
    "FeatureDescription",
    "FeatureStore",
    "MixtureOf",
    "MixtureSelected",
    "Prediction",
    "Predictor",
    "hold_out",
    "make_features",
    "mean_accuracy",
    "normalise",
    "read_questions",
    "soft_target",
    "vqa_accuracy",
    "write_results",
]
