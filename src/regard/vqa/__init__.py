"""Visual question answering: data, model, metric, training, and what the model looked at."""

from regard.vqa.metric import Accuracy, evaluate_answers, normalise, soft_target, vqa_accuracy

__all__ = ["Accuracy", "evaluate_answers", "normalise", "soft_target", "vqa_accuracy"]
