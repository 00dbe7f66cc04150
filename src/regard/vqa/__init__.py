"""Visual question answering: data, model, training, accuracy, and the attention of the model.

vqa_accuracy("two", ["2"] * 9 + ["3"])              # the official accuracy
records = read_questions("vqa/", "train")           # VQA-v2, a JSONL or a CSV
store, skipped = make_features("out/features", records.pictures, backbone)
regard.vqa.train.train("out/vqa", records, store, regard.vqa.train.small_training())
Predictor.load("out/vqa").ask(picture, "What colour is the ring?", MixtureOf(2))    # or "mixture-2"
"""

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
