"""Options that are made of settings: the names that exist, what they give, and what is refused."""

import dataclasses
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from regard._problem import Problem
from regard.cli import application
from regard.cli._options import Derived, applied, derived
from regard.swav import PRESETS, Settings, preset
from regard.training import Running
from regard.training._setting import changed, setting, settings_in
from regard.vqa.settings import TrainSettings, preset_training


def words(text):
    return text.split()


RUNNING = words(
    """checkpoint-every device devices fresh log log-every no-progress num-nodes precision progress resume strategy
    timeout workers"""
)
SHARED = words("device devices num-nodes strategy timeout")
LOOKING = words("basis em-iterations map no-padding padding price ridge-penalty")
MODEL = words(
    """affinity before cell-variance coordinates dropout feed-forward flat fused guided-first guided-mixes heads layers
    marks neighbours no-cell-variance no-coordinates no-guided-first no-guided-mixes no-neighbours no-norm-first
    no-standardise no-sums no-unbiased-norm no-whiten norm-first placement reads scores self-attention standardise sums
    tokens unbiased-norm whiten whiten-width width words"""
)
TRAINING = words("above accumulate anneal batch clip epochs glove grouped lr optimizer schedule single")
VIEWS = words("blur blur-sigma flip grey jitter jitter-p local local-scale local-size ratio scale size tries window")
PRETRAINING = words(
    """accumulate backbone backbone-options batch-size canvas clip codes dim eps final-lr freeze hidden iterations lr
    mixed-shards no-pretrained nonlocal-affinity nonlocal-after norm-processes optimizer pretrained
    prototype-lr prototypes queue     queue-epoch queue-step seed steps temperature warmup warmup-start weight-decay"""
)
FINETUNING = words(
    """batch-size canvas epochs flip frozen held-out labels lr lr-head momentum schedule scale seed weight-decay
    whole"""
)
# Frozen: who removes one breaks commands that others have written down.
FLAGS = {
    "index": ["cache"],
    "pretrain": ["cache", "cache-gb", "out", "patience", "preset", *RUNNING, *VIEWS, *PRETRAINING],
    "finetune": ["out", "preset", "test", *RUNNING, *FINETUNING],
    "classify": [
        *(
            "backbone",
            "batch-size",
            "dropout",
            "epochs",
            "held-out",
            "hidden",
            "json",
            "largest",
            "lr",
            "masks",
            "out",
            "picture",
        ),
        *("pool", "seed", "size", "test", "weight-decay"),
        *("checkpoint-every", "device", "fresh", "log", "log-every", "no-progress", "precision", "progress"),
        "resume",
    ],
    "train": [
        *("attention", "end-to-end", "features", "out", "patience", "pictures", "preset", "seed", "size", "split"),
        *("validation", *RUNNING, *LOOKING, *MODEL, *TRAINING),
    ],
    "compare": [
        *(
            "attention",
            "faithfulness",
            "features",
            "hide",
            "join",
            "out",
            "pictures",
            "preset",
            "regions",
            "seeds",
            "shared-epochs",
            "test",
            "unseen",
            "workers",
        ),
        *("checkpoint-every", "device", "fresh", "log-every", "precision", "resume"),
        *(*LOOKING, *MODEL, *TRAINING),
    ],
    "evaluate": ["attention", "faithfulness", "hide", "out", "pictures", "regions", "test", *LOOKING, *SHARED],
    "features": [
        "backbone",
        "batch",
        "fresh",
        "no-stages",
        "out",
        "pictures",
        "seed",
        "size",
        "split",
        "stages",
        *SHARED,
    ],
}


def command(name):
    return typer.main.get_command(application()).commands[name]


@pytest.mark.parametrize("name", FLAGS)
def test_the_flags_are_these(name):
    flags = {flag for one in command(name).params for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")}
    assert sorted(flags - {"--help"}) == sorted(f"--{flag}" for flag in FLAGS[name])


@pytest.mark.parametrize("name", FLAGS)
def test_every_option_says_what_it_does_and_its_default(name):
    for one in command(name).params:
        if one.name not in ("data", "pictures", "help"):
            assert re.match(r"[A-Z].+\S", one.help), one.name
            assert "(default: " in one.help or one.show_default or one.default is not None, one.name


def test_presets_give_the_defaults_that_the_help_shows():
    texts = {one.name: one.help for one in command("pretrain").params if one.param_type_name == "option"}
    for name, entry in settings_in(Settings).items():
        values = {key: entry.of(make()) for key, make in PRESETS.items()}
        for key, value in values.items():
            if isinstance(value, int) and not isinstance(value, bool) and len(set(values.values())) > 1:
                assert f"{key} {value}" in texts[name] or f"(default: {value};" in texts[name]


@pytest.fixture
def given():
    """What a command would receive: (changes of settings, changes of running)."""
    app, received = typer.Typer(), []

    @app.command()
    @derived(
        changes=Derived(Settings, "The run", presets={name: make() for name, make in PRESETS.items()}),
        running=Derived(Running, "How"),
    )
    def run(changes: dict[str, Any], running: dict[str, Any]) -> None:
        received.append((changes, running))

    def invoke(*arguments):
        done = CliRunner().invoke(app, arguments)
        return received.pop() if done.exit_code == 0 else done

    return invoke


def test_only_what_was_given_changes(given):
    assert given() == ({}, {})
    changes, running = given("--steps", "7", "--local", "0", "--scale", "0.3", "0.9", "--no-pretrained", "--fresh")
    assert changes == {"steps": 7, "local": 0, "scale": (0.3, 0.9), "pretrained": False}
    assert running == {"resume": False}
    settings = applied(preset("digits"), changes)
    assert settings == preset("digits", steps=7, local=0, scale=(0.3, 0.9), pretrained=False)
    assert settings.crops.local == 0
    assert settings.prototypes == preset("digits").prototypes


def test_values_have_the_types_of_the_settings(given):
    changes, running = given(
        *("--backbone-options", '{"norm": "group"}', "--nonlocal-after", "[[1, 0]]", "--optimizer", "lars"),
        *("--devices", "2", "--log", "none"),
    )
    assert changes == {"backbone_options": {"norm": "group"}, "nonlocal_after": ([1, 0],), "optimizer": "lars"}
    assert running == {"devices": 2, "log": "none"}
    assert type(changes["optimizer"]) is str
    assert given("--devices", "auto")[1] == {"devices": "auto"}


@pytest.mark.parametrize(
    "arguments", ["--steps many", "--steps 0", "--optimizer sgd", "--log paper", "--scale 0.3", "--set steps=3"]
)
def test_what_is_no_value_is_refused(given, arguments):
    assert given(*arguments.split()).exit_code == 2


def test_values_that_cannot_be_read_name_their_option(monkeypatch, capsys):
    from regard.cli import main

    monkeypatch.setattr(sys, "argv", ["regard", "pretrain", "--backbone-options", "{norm"])
    with pytest.raises(SystemExit) as ended:
        main()
    written = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.fullmatch(r"regard: --backbone-options: .*not JSON.* Try: .*--help\n", written)


def test_two_options_of_one_name_are_refused():
    with pytest.raises(TypeError, match="two options 'steps'"):

        @derived(changes=Derived(Settings, "The run"))
        def run(steps: int, changes: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError, match="no setting 'colour'"):
        Derived(Settings, "The run", without=frozenset({"colour"})).settings()


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = setting("A side.", 1)


@dataclasses.dataclass(frozen=True)
class Twice:
    size: int = setting("Another side.", 2)
    inner: Inner = dataclasses.field(default_factory=Inner)


@dataclasses.dataclass(frozen=True)
class Silent:
    size: int = 3


def test_settings_of_one_name_or_without_help_are_refused():
    with pytest.raises(TypeError, match="two settings 'size'"):
        settings_in(Twice)
    with pytest.raises(TypeError, match="no help"):
        settings_in(Silent)


def test_changes_of_settings():
    assert preset_training("small", attention="mixture-2", batch=3).model.attention == "mixture-2"
    assert changed(TrainSettings(), {}) == TrainSettings()
    with pytest.raises(Problem, match=r"no setting 'colour'\. Settings are above, "):
        preset_training("small", colour=1)
    with pytest.raises(Problem, match="epochs") as problem:
        applied(TrainSettings(), {"epochs": 0})
    assert "\n" not in str(problem.value)


def test_a_command_imports_no_other():
    code = (
        "import sys; sys.argv = ['regard', 'doctor', '--help']\n"
        "from regard.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'regard.swav', 'regard.vqa', 'regard.training', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == "[]"
