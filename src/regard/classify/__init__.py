"""Classification of one's own pictures on frozen features, and where the classifier looked.

    outcome = train_classifier("photos/", "out/photos-classes")      # a folder for each class
    print(outcome.summary.table())
    found = Classifier.load("out/photos-classes").classify(regard.pictures.read("new.jpg"))
    found.answer, found.confidence, found.weights                     # the class, and what it was read from

A backbone that was trained before makes the features, once; a pool turns the cells of a picture into one vector, by
average or by an attention (`parse_pool` lists them); a linear layer names the class.
"""

from typing import TYPE_CHECKING

from regard._lazy import lazily

if TYPE_CHECKING:
    from regard.classify._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
