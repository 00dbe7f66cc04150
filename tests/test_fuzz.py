"""The targets of `make fuzz`, a few cases each: they run, and they see what is wrong."""

import random

import pytest
import torch

import regard
from tools.fuzz import files, numbers
from tools.fuzz.target import FILES, NUMBERS


@pytest.mark.parametrize("target", [*NUMBERS, "picture", "table"])
def test_some_cases_of_each_target(target):
    function = getattr(numbers if target in NUMBERS else files, target)
    for case in range(3 if target == "bases" else 25):
        function(random.Random(f"{target}{case}"))


def test_every_target_is_tried_here_or_needs_a_model():
    assert set(FILES) - {"picture", "table"} == {"checkpoint"}


def test_a_wrong_result_is_found(monkeypatch):
    right = regard.sparsemax
    monkeypatch.setattr(regard, "sparsemax", lambda s, **options: right(s, **options) + 1e-3)

    def search():
        for case in range(100):
            numbers.maps(random.Random(case))

    with pytest.raises(numbers.Wrong, match="sparsemax"):
        search()


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError()])
def test_an_error_that_was_not_foreseen_is_found(error):
    def action():
        raise error

    with pytest.raises((KeyError, numbers.Wrong)):
        files.clear("it", action)


def test_what_is_not_finite_is_found():
    with pytest.raises(numbers.Wrong, match="not finite"):
        numbers.close("it", torch.tensor([float("nan")]), torch.tensor([0.0]), 1.0)
