"""What builds and publishes the package: the workflows call the Makefile, and all agree on Pythons and files."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
sys.path.insert(0, str(ROOT / "tools"))
try:
    import release
finally:
    sys.path.remove(str(ROOT / "tools"))


def steps(path):
    """Every step of a workflow, with its job."""
    for name, job in yaml.safe_load(path.read_text())["jobs"].items():
        yield from ((name, step) for step in job["steps"])


def targets():
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_every_command_is_a_target_of_the_makefile(path):
    commands = [step["run"] for _, step in steps(path) if "run" in step]
    assert commands
    for command in commands:
        found = re.fullmatch(r"make ([\w-]+) PYTHON=(python|\$\{\{ matrix\.python \}\})", command)
        assert found, command
        assert found[1] in targets()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_actions_are_pinned_by_version(path):
    used = [step["uses"] for _, step in steps(path) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", action) for action in used)


def test_a_release_is_published_by_a_trusted_publisher_after_the_tests():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert (publish["needs"], jobs["test"]["needs"], jobs["wheel"]["needs"]) == ("test", "wheel", "sdist")
    built = {entry["name"] for entry in jobs["wheel"]["strategy"]["matrix"]["include"]}
    assert built == {"linux-x86_64", "linux-aarch64", "macos-arm64", "windows-x86_64"}
    assert len(jobs["test"]["strategy"]["matrix"]["runner"]) == len(built)


def test_everything_names_the_same_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert stated == jobs["test"]["strategy"]["matrix"]["python"] == list(release.PYTHONS)
    assert project["requires-python"] == f">={stated[0]}"


@pytest.mark.parametrize("name", ["_kernels_avx2.so", "_kernels_baseline.dylib", "_kernels_baseline.dll", "rows.cpp"])
def test_a_wheel_may_hold_kernels_with_plain_names(name):
    assert release.ALLOWED.fullmatch(f"regard/native/{name}")
    assert not release.ALLOWED.fullmatch("regard/native/_kernels.cpython-311-x86_64-linux-gnu.so")
    assert not release.ALLOWED.fullmatch("regard.libs/libgomp-0123abcd.so.1")


def test_a_python_that_does_not_run_is_passed_over(tmp_path):
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert not release.works(str(shim))
    assert release.works(sys.executable)
