"""From a folder of pictures and a table of questions to a model that answers, evaluated, with a report."""

from regard.answering.run import AnsweringOutcome, answer_questions

__all__ = ["AnsweringOutcome", "answer_questions"]
