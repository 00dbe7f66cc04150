"""The folder of a run: versions, progress, checkpoints by name, and no other place that knows its files."""

import json
import re
from pathlib import Path

import pytest

import regard
from regard._problem import Problem
from regard.training import Checkpoint, RunFolder


def test_a_run_of_a_later_format_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config({"kind": "mine"})
    content = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps({"kind": "mine"}))  # one without a version is of the first
    assert folder.read_config() == {"kind": "mine"}
    folder.config.write_text(json.dumps(content | {"format": content["format"] + 1}))
    with pytest.raises(Problem, match=r"Update it: .*pip install"):
        folder.read_config()


def test_how_far_a_run_is(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.share() == 0
    folder.write_steps(40)
    folder.log.write_text("step,loss\n1,3\n10,2\n")
    assert folder.share() == 0.25
    folder.write_done(12.0)
    assert folder.is_done
    assert folder.share() == 1
    folder.begin_afresh()
    assert folder.share() == 0.25


def test_a_checkpoint_is_known_by_its_name(tmp_path):
    assert Checkpoint.at(tmp_path / "step-x") is None
    assert Checkpoint.at(tmp_path / "run") is None
    found = Checkpoint.at(tmp_path / "run" / "checkpoints" / "step-00000012")
    assert (found.step, found.run) == (12, tmp_path / "run")


def test_nobody_else_spells_the_names_of_a_run():
    """A file of a run is reached by the class that owns the folder."""
    names = r"steps|done|log\.csv|checkpoints|config\.json|features\.json|validation\.json|vocabulary\.json"
    names += r"|training\.json|broken\.txt|evaluation\.json|prototypes\.png|results\.json|table\.txt|report\.html"
    spelled = re.compile(rf'/ f?["\']({names})["\']')
    source = Path(regard.__file__).parent
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if spelled.search(re.sub(r"(?m)^\s*(>>>|\.\.\.).*$", "", path.read_text(encoding="utf-8")))
    }
    owners = {"training/_folder.py", "swav/_folder.py", "vqa/folder.py", "classify/folder.py", "demo/run.py"}
    assert found - owners <= {"vqa/features.py"}  # that of its own store
