"""The command line: help that reads like a page, completion, errors in one line."""

import errno
import os
import re
import signal
import sys

import pytest
from typer.testing import CliRunner

import regard.cli
from regard._problem import Problem
from regard._stop import Stopped
from regard.cli import GROUPS, application

APP = application()
COMMANDS = [(name,) for names in GROUPS.values() for name in names if name != "export"]
COMMANDS += [("export", "backbone"), ("export", "model")]


def helped(*command):
    done = CliRunner().invoke(APP, [*command, "--help"], prog_name="regard", env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0
    return done.output


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `regard ...` in this process: its status and what it wrote to standard error."""
    monkeypatch.delenv("REGARD_DEBUG", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        with pytest.raises(SystemExit) as ended:
            regard.cli.main()
        said = capsys.readouterr().err
        if isinstance(ended.value.code, str):  # what the interpreter does with it
            return 1, ended.value.code + "\n" + said
        return ended.value.code, said

    yield run
    os.environ.pop("REGARD_DEBUG", None)


def test_the_first_page_names_all_commands_in_groups():
    page = helped()
    for group, names in GROUPS.items():
        panel = page[page.index(f" {group} ") :].split("╰")[0]
        assert re.findall(r"^│ (\w+) ", panel, re.MULTILINE) == list(names)
    assert "--install-completion" in page


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_a_page_with_examples(command):
    page = helped(*command)
    prose, _, options = page.partition("╭")
    examples = [line.strip() for line in prose.splitlines() if line.strip().startswith("regard ")]
    assert examples, "an example on a line of its own"
    assert all(example.split()[1 : 1 + len(command)] == list(command) for example in examples)
    assert len(prose.split()) > 30
    for line in re.findall(r"^│ \*? *(?:--\w|\w+ +<).*$", options, re.MULTILINE):
        assert re.search(r"[A-Za-z]\w+[.;:,]? +\w+", line.split(">", 1)[1]), f"no help: {line}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_use_options_that_exist(command):
    page = helped(*command)
    prose, _, options = page.partition("╭")
    used = set(re.findall(r"(?<!\w)--[a-z][\w-]*", "\n".join(re.findall(r"^ +regard .*$", prose, re.MULTILINE))))
    assert used <= set(re.findall(r"--[a-z][\w-]*", options))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["ask", "nowhere", "a.png", "What?"], 1, r"regard: nowhere has no checkpoint\. .*regard train"),
        (["evaluate", "nowhere"], 1, r"regard: nowhere has no readable config\.json"),
        (["pretrain", "nowhere"], 1, r"regard: nowhere does not exist\. Check the path\."),
        (["train"], 2, r"regard: Missing argument .*\. Try: regard train --help"),
        (["trian"], 2, r"regard: No such command 'trian'.*Try: regard --help"),
        (["scenes", "x", "--train", "many"], 2, r"regard: Invalid value for '--train'.*Try: regard scenes --help"),
    ],
)
def test_errors_are_one_line_with_a_hint(run, arguments, status, said):
    code, written = run(*arguments)
    assert code == status
    assert len(written.strip().splitlines()) == 1
    assert re.match(said, written)


def broken(*_, **__):
    raise KeyError("a bug")


def test_a_bug_is_one_line_and_debug_shows_it(run, monkeypatch):
    monkeypatch.setattr("regard.patches.draw_maps", broken)
    code, written = run("maps")
    assert code == 1
    assert written.startswith("regard: KeyError: 'a bug' Not foreseen")
    assert len(written.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--debug", "evaluate", "nowhere"], ["evaluate", "nowhere", "--debug"]])
def test_debug_shows_the_traceback(monkeypatch, arguments):
    monkeypatch.setattr(sys, "argv", ["regard", *arguments])
    monkeypatch.setenv("REGARD_DEBUG", "")
    with pytest.raises(Problem):
        regard.cli.main()


def test_interrupted(run, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.patches.draw_maps", stop)
    assert run("maps") == (130, "regard: stopped. Rerun the command to resume the run.\n")


def test_terminated(run, monkeypatch):
    def stop(*_, **__):
        raise Stopped(signal.SIGTERM, "step 3 of 9 is kept in out/run")

    monkeypatch.setattr("regard.patches.draw_maps", stop)
    said = "regard: stopped: step 3 of 9 is kept in out/run. Rerun the command to resume the run.\n"
    assert run("maps") == (143, said)


def test_sigterm_is_one_line_and_its_status(run, monkeypatch):
    monkeypatch.setattr("regard.patches.draw_maps", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert run("maps") == (143, "regard: stopped. Rerun the command to resume the run.\n")
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL


def test_a_full_disk_is_one_line(run, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "out/maps.png")

    monkeypatch.setattr("regard.pictures.open_pictures", full)
    code, said = run("pretrain", "photos")
    assert code == 1
    assert said.startswith("regard: no space is left on the disk of out/maps.png. Make space, then rerun")


def test_no_command_is_help(run):
    code, _ = run()
    assert code in (0, 2)


def test_completion(run, monkeypatch, capsys):
    monkeypatch.setenv("_REGARD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "regard pre")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setattr(sys, "argv", ["regard"])
    with pytest.raises(SystemExit):
        regard.cli.main()
    assert capsys.readouterr().out.split() == ["pretrain"]
