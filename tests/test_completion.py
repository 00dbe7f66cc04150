"""Completion by the shell: the protocol of bash, zsh and fish, as their scripts call the program."""

import os
import shutil
import subprocess
import sys

import pytest
from light import PROGRAM

from regard.backbones._known import BACKBONE_NAMES
from regard.swav import PRESETS
from regard.vqa.inside import LAYER_MAP_NAMES
from regard.vqa.kinds import COMPARED, NAMES
from regard.vqa.settings import TRAIN_PRESETS
from regard.vqa.splits import SPLIT_NAMES

# What is typed, and what is offered; () means that the shell completes paths.
LINES = {
    "regard pre": ("pretrain",),
    "regard exp": ("export", "explore"),
    "regard export ": ("backbone", "model"),
    "regard train --att": ("--attention",),
    "regard train --attention ": NAMES,
    "regard train --attention continuous-": ("continuous-softmax", "continuous-sparsemax"),
    "regard ask --attention mixture-4": ("mixture-4", "mixture-4-sparse", "mixture-4-paraboloids-sparse"),
    "regard compare --attention discrete-s": ("discrete-softmax", "discrete-sparsemax"),
    "regard train --preset ": tuple(TRAIN_PRESETS),
    "regard compare --preset ": tuple(TRAIN_PRESETS),
    "regard pretrain --preset ": tuple(PRESETS),
    "regard pretrain --preset d": ("digits",),
    "regard pretrain --codes ": ("sinkhorn", "kmeans", "sela"),
    "regard finetune out/photos --preset 1": ("10-percent", "1-percent"),
    "regard features data.csv --backbone ": BACKBONE_NAMES,
    "regard pretrain --backbone efficientnet-lite": tuple(n for n in BACKBONE_NAMES if n.startswith("efficient")),
    "regard train --end-to-end sm": ("small", "small-wide"),
    "regard train --split ": SPLIT_NAMES,
    "regard features --split va": ("val",),
    "regard train --validation ": SPLIT_NAMES,
    "regard compare --test te": ("test", "test-dev"),
    "regard compare --unseen p": ("pairs",),
    "regard train --map ": LAYER_MAP_NAMES,
    "regard train --affinity ": ("dot", "bilinear", "additive", "wasserstein"),
    "regard train --basis ": ("gaussian", "fourier", "paraboloid", "thesis-49", "thesis-100"),
    "regard train --optimizer ": ("adam", "muon"),
    "regard pretrain --optimizer ": ("adamw", "lars", "larc"),
    "regard train --log ": ("csv", "tensorboard", "none"),
    "regard train --device ": ("auto", "cpu", "cuda", "cuda:1", "mps", "xpu"),
    "regard features --device c": ("cpu", "cuda", "cuda:1"),
    "regard train --precision b": ("bf16-mixed",),
    "regard train --strategy d": ("ddp",),
    "regard train --out ": (),
    "regard features --backbone out/": (),
    "regard ask ": (),
    "regard pretrain ": (),
}


def completed(**environment):
    """Status and output of the program in the environment that a shell's script makes."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.stderr.splitlines() == ["HEAVY"]
    return done.returncode, done.stdout


def bash(line):
    words = line.split(" ")
    status, out = completed(_REGARD_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert status == 0
    return tuple(out.split())


def zsh(line):
    status, out = completed(_REGARD_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert status == 0
    if out.strip() == "_files":
        return ()
    lines = out.removeprefix("_arguments '*: :((").rstrip().removesuffix("))'").splitlines()
    return tuple(line.split('"')[1] for line in lines)


def fish(line):
    asked = {"_REGARD_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    status, _ = completed(**asked, _TYPER_COMPLETE_FISH_ACTION="is-args")
    _, out = completed(**asked, _TYPER_COMPLETE_FISH_ACTION="get-args")
    names = tuple(line.split("\t")[0] for line in out.splitlines() if line)
    assert status == (0 if names else 1), "names of the program, or files"
    return names


@pytest.mark.parametrize("line", LINES)
def test_bash(line):
    assert sorted(bash(line)) == sorted(LINES[line])


@pytest.mark.parametrize("shell", [zsh, fish])
@pytest.mark.parametrize(
    "line",
    [
        *("regard pre", "regard train --attention continuous-", "regard train --preset ", "regard train --split "),
        *("regard features data.csv --backbone ", "regard train --log ", "regard train --out ", "regard ask "),
    ],
)
def test_zsh_and_fish(shell, line):
    assert sorted(shell(line)) == sorted(LINES[line])


def test_the_commands_that_are_offered_take_what_is_offered():
    assert set(map(str, COMPARED)) <= set(NAMES)


@pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="needs bash, and programs by shebang")
def test_in_a_real_bash(tmp_path):
    """The script that `--show-completion` prints, sourced; the words as bash passes them on after a Tab."""
    program = tmp_path / "regard"
    program.write_text(f"#!{sys.executable}\nfrom regard.cli import main\nmain()\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment["_REGARD_COMPLETE"] = "source_bash"
    script = subprocess.run([program], capture_output=True, text=True, check=True, env=environment).stdout
    del environment["_REGARD_COMPLETE"]
    tab = (
        f"{script}\nCOMP_WORDS=(regard train --preset '') COMP_CWORD=3\n"
        '_regard_completion regard\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", tab], capture_output=True, text=True, check=True, env=environment)
    assert tuple(done.stdout.split()) == tuple(TRAIN_PRESETS)
