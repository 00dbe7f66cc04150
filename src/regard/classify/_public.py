"""The public names of regard.classify, imported when the first of them is used."""

from regard.classify.head import ClassifierHead
from regard.classify.pools import POOLS, parse_pool
from regard.classify.predict import Classification, Classifier
from regard.classify.run import ClassifierOutcome, train_classifier
from regard.classify.settings import ClassifierSettings
from regard.classify.summary import ClassifierSummary, PoolResult

__all__ = [
    "POOLS",
    "Classification",
    "Classifier",
    "ClassifierHead",
    "ClassifierOutcome",
    "ClassifierSettings",
    "ClassifierSummary",
    "PoolResult",
    "parse_pool",
    "train_classifier",
]
