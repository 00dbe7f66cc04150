"""From a folder of pictures and a table of questions to a model that answers, evaluated, with a report."""

from regard.answering.run import Answered, answer_questions

__all__ = ["Answered", "answer_questions"]
