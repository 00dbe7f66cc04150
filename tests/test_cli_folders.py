"""Where commands write by default."""

import inspect
import os
from pathlib import Path

import pytest

from regard.cli import application
from regard.cli._folders import default_folder

# Commands that read data, and make something of them that a second input must not meet.
MADE_OF_DATA = ("pretrain", "finetune", "features", "train", "compare", "thesis", "vqa", "classify")


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "b"), ("a/train", "b/train"), ("a/q.csv", "b/q.csv"), ("/data/a/train", "/data/b/train"), ("a", "a/b")],
)
def test_two_inputs_have_two_folders(first, second):
    assert default_folder(Path(first), "features") != default_folder(Path(second), "features")


def test_the_working_folder_and_those_above_it_have_names(tmp_path, monkeypatch):
    (tmp_path / "pets" / "train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "pets" / "train")
    assert default_folder(Path(), "classes").as_posix() == "out/pets-train-classes"
    assert default_folder(Path(".."), "classes").as_posix() == f"out/{tmp_path.name}-pets-classes"


def test_a_folder_with_a_dot_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("photos.2024")
    assert default_folder(Path("photos.2024"), "classes").as_posix() == "out/photos.2024-classes"


@pytest.mark.parametrize("name", MADE_OF_DATA)
def test_no_command_has_a_folder_of_its_own_for_every_input(name):
    command = {one.callback.__name__: one.callback for one in application().registered_commands}[name]
    options = inspect.signature(command).parameters
    for option in ("out", "features"):
        if option in options:
            assert options[option].default.default is None, f"regard {name} --{option}"
