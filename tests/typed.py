"""Runs the commands of the pages as a reader types them: in one process, on tiny data, with short trainings.

What is typed is never changed. Data are small (`write_stand_ins`), and inside `shortened` every training ends after a
few updates, whatever the command says about its length.
"""

import contextlib
import csv
import doctest
import functools
import io
import re
import shlex
import socket
import sys
import warnings
import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image

import regard.cli

ROOT = Path(__file__).parent.parent
LANGUAGES = ("sh", "bash", "shell", "console")
SHOWN = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SYNTAX = re.compile(r"[|<>;&]+")  # outside of quotes: more than one command, or files that it writes

# Commands that are not run, by how they begin, and why. Any other command of a page is run.
NOT_RUN = {
    "make": "sets up an environment and runs for minutes; the target must exist",
    "git clone": "needs a network",
    "cd regard": "goes into that clone",
    "hf upload": "needs a network and an account",
    "curl": "needs a server that goes on; tests/explore sends such requests",
    "regard --install-completion": "changes the shell of whoever runs the tests",
    "regard --show-completion": "prints what depends on the shell that started the tests",
    "regard pretrain shards/": "needs several GPUs or machines; its options must exist",
    "regard pretrain s3://mine/shards": "needs a server; tests/swav/test_streaming.py has one; its options must exist",
    "regard pretrain 'https://data.example.org/{0000..0127}.tar'": "needs a server, as above",
    "torchrun": "needs several machines; tools/faults.py and tests/training/test_faults.py start it",
    "regard index s3://mine/shards": "needs a server, as above",
    "python tools/release.py": "installs a wheel into a new environment; `make release` runs it",
    "python tools/peers": "needs clones of other projects; tests/test_peers.py tests the tool",
}
STEPS, SCENES = 2, 10  # updates of a training; scenes of a split


@dataclass(frozen=True)
class Command:
    """One command: its words, and what the page says that it prints (None if it does not say)."""

    words: list[str]
    shown: str | None = None

    def __str__(self):
        return shlex.join(self.words)

    @property
    def reason(self):
        """Why it is not run; None if it is."""
        return next((why for begin, why in NOT_RUN.items() if f"{self} ".startswith(f"{begin} ")), None)


def commands(block):
    """The commands of a block. If a line begins with "$ ", then only such lines are commands, the others output."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    dialogue = any(line.startswith("$ ") for line in lines)
    found = []
    for line in lines:
        if dialogue and not line.startswith("$ "):
            found[-1] = replace(found[-1], shown=f"{found[-1].shown or ''}{line}\n")
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if any(SYNTAX.fullmatch(word) for word in shlex.shlex(line, posix=False, punctuation_chars=True)):
            raise AssertionError(f"{line}: write one command on a line, without pipes and redirections")
        if words:
            found.append(Command(words))
    return found


def check_not_run(command):
    """What a command that is not run names must exist all the same: targets, files, options."""
    program, *rest = command.words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(rest) <= set(targets), command
    elif program == "python":
        assert (ROOT / rest[0]).exists(), command
    elif program == "regard" and not rest[0].startswith("-"):
        parser(rest[0]).make_context(rest[0], rest[1:])


@functools.cache
def parser(name):
    """What parses the arguments of a command of `regard`."""
    return typer.main.get_command(regard.cli.application(name)).commands[name]


def run(command):
    """Run `regard ...` in this process, and return what it prints; a failure is an AssertionError."""
    program, *rest = command.words
    assert program == "regard", f"{command}: add it to NOT_RUN with a reason"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", [program, *rest])
        patch.delenv("REGARD_DEBUG", raising=False)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                regard.cli.main()
            except SystemExit as ended:
                status = ended.code
    if isinstance(status, str):  # printed by the interpreter
        printed.write(status + "\n")
    if command.shown is None:
        assert not status, f"{command}\n{printed.getvalue()}"
    else:
        assert doctest.OutputChecker().check_output(command.shown, printed.getvalue(), SHOWN), printed.getvalue()
    return printed.getvalue()


def perform(block):
    """Run the commands of a block in the current folder, one after the other; return what they print."""
    printed = ""
    for command in commands(block):
        if command.reason:
            check_not_run(command)
        else:
            with shortened():
                printed += run(command)
    return printed


@contextlib.contextmanager
def shortened():
    """Inside, trainings and splits of scenes are short, jobs run in this process, and a server answers once."""
    import uvicorn

    import regard.scenes
    from regard.training import _loop
    from regard.vqa import jobs

    whole_loop, whole_split, listen = _loop.run_loop, regard.scenes.Scenes, socket.create_server

    def short_loop(task, data, call, state):
        steps = min(call.settings.steps, call.start + STEPS)
        return whole_loop(task, data, replace(call, settings=replace(call.settings, steps=steps)), state)

    def small_split(split, count, *rest):
        return whole_split(split, min(count, SCENES), *rest)

    def any_port(address, **options):
        return listen((address[0], 0), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_loop, "run_loop", short_loop)
        patch.setattr(regard.scenes, "Scenes", small_split)
        patch.setattr(jobs, "run_parallel", lambda function, inputs, *_, **__: [function(one) for one in inputs])
        patch.setattr(socket, "create_server", any_port)
        patch.setattr(uvicorn.Server, "run", answer_once)
        patch.setattr(webbrowser, "open", lambda *_, **__: True)
        yield


def answer_once(server, sockets=None):
    """In place of a server that goes on until ctrl-c: its first page is asked for."""
    from starlette.testclient import TestClient

    for listening in sockets or []:
        listening.close()
    assert TestClient(server.config.app, base_url="http://127.0.0.1").get("/").status_code == 200


def write_stand_ins(folder):
    """What the pages call yours: photos/, labelled/ (a folder per class), masks/ of it, questions.csv and new.csv."""
    made = torch.Generator().manual_seed(0)
    colours = ("red", "green", "blue")

    def write(path, colour):
        picture = torch.randint(0, 120, (40, 56, 3), dtype=torch.uint8, generator=made)
        picture[8:32, 8:40, colours.index(colour)] = 230
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.numpy()).save(path)

    rows = []
    for number in range(30):
        colour = colours[number % len(colours)]
        write(folder / "photos" / f"{number}.jpg", colour)
        write(folder / "labelled" / colour / f"{number}.png", colour)
        mask = Image.new("L", (56, 40))
        mask.paste(255, (8, 8, 40, 32))
        (folder / "masks" / colour).mkdir(parents=True, exist_ok=True)
        mask.save(folder / "masks" / colour / f"{number}.png")
        rows += [(f"{number}.jpg", "What colour is the thing?", colour)]
        rows += [(f"{number}.jpg", "Is the thing red?", "yes" if colour == "red" else "no")]
    table = functools.partial(open, mode="w", newline="", encoding="utf-8")
    with table(folder / "questions.csv") as file:
        csv.writer(file).writerows([("image", "question", "answer"), *rows])
    with table(folder / "new.csv") as file:
        csv.writer(file).writerows([("image", "question"), *(row[:2] for row in rows[:4])])
