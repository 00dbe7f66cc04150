"""Visual question answering: data, model, training, accuracy, and the attention of the model.

vqa_accuracy("two", ["2"] * 9 + ["3"])              # the official accuracy
records = read_questions("vqa/", "train")           # VQA-v2, a JSONL or a CSV
store, skipped = make_features("out/features", records.pictures, backbone)
regard.vqa.train.train("out/vqa", records, store, regard.vqa.train.small_training())
Predictor.load("out/vqa").ask(picture, "What colour is the ring?", MixtureOf(2))    # or "mixture-2"
"""

from typing import TYPE_CHECKING

from regard._lazy import lazily

if TYPE_CHECKING:
    from regard.vqa._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
