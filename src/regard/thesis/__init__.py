"""The experiments of the thesis, by the names of its tables and figures: what `regard thesis` runs."""

from regard.thesis.printed import EXPERIMENTS, Experiment, FigureExperiment, TableExperiment, experiment

__all__ = ["EXPERIMENTS", "Experiment", "FigureExperiment", "TableExperiment", "experiment"]
