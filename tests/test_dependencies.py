"""Every dependency is assessed in docs/dependencies.md, and what `make demo` installs is fixed by hash."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY = re.compile(r"^(\S+)==(\S+)(?: ; ([^\\]+))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def declared():
    """The extras that ask for each package."""
    named = {"to build": PROJECT["build-system"]["requires"], "core": PROJECT["project"]["dependencies"]}
    found = {}
    for extra, lines in (named | PROJECT["project"]["optional-dependencies"]).items():
        for requirement in map(Requirement, lines):
            if requirement.name != "regard":
                found.setdefault(requirement.name, set()).add(extra)
    return found


def locked(*names):
    """Name, version, marker and hashes of what files of requirements/ list."""
    files = [ROOT / "requirements" / f"{name}.txt" for name in names]
    return {m[1]: (m[2], m[3], m[4].split()) for file in files for m in ENTRY.finditer(file.read_text())}


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(n): v for n, v in (line.split("==") for line in lines if not line.startswith("#"))}


def asked(extras):
    """What regard requires with some of its own extras."""
    extra = PROJECT["project"]["optional-dependencies"]
    for requirement in map(Requirement, [*PROJECT["project"]["dependencies"], *(d for e in extras for d in extra[e])]):
        yield from asked(requirement.extras) if requirement.name == "regard" else [requirement]


def test_each_dependency_is_assessed_once():
    text = (ROOT / "docs" / "dependencies.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assessed = [row for row in rows if len(row) == 7 and row[0] != "package" and not row[0].startswith("-")]
    assert len(assessed) == len({row[0] for row in assessed})
    assert {row[0]: set(row[1].split(", ")) for row in assessed} == declared()
    assert all(cell for row in assessed for cell in row)
    assert all(re.search(r"\d, 20\d\d-\d\d-\d\d$", row[4]) for row in assessed)


@pytest.mark.parametrize(
    ("name", "last_with_a_hole"),
    [
        ("pillow", "12.3.0"),  # heap overflow in the JPEG decoder
        ("python-multipart", "0.0.26"),  # headers without limits; before it slow preambles, names of uploads as paths
        ("starlette", "1.5.0"),  # ranges without limits; before it limits of forms, hosts in URLs
    ],
)
def test_releases_with_known_holes_are_excluded(name, last_with_a_hole):
    bounds = [r for r in asked(["explore", "test"]) if r.name == name]
    assert bounds
    assert not any(r.specifier.contains(last_with_a_hole) for r in bounds)
    assert all(r.specifier.contains(pinned()[name]) for r in bounds)


def test_releases_that_were_compromised_are_excluded():
    lightning = next(r for r in asked(["swav"]) if r.name == "lightning")
    assert not any(lightning.specifier.contains(version) for version in ("2.6.2", "2.6.3"))
    assert lightning.specifier.contains(locked("demo")["lightning"][0])


@pytest.mark.parametrize("name", ["torch", "demo", "dev", "docs", "fuzz", "cuda"])
def test_every_line_of_the_lock_has_a_version_and_a_hash(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert text.splitlines()[1] == "--only-binary :all:"
    assert not ENTRY.sub("", text.split("\n", 2)[2]).strip()
    assert all(locked(name).values())


def test_the_lock_has_the_versions_of_the_constraints():
    """`make lock` was run after the last change; the packages of CUDA are not pinned, torch names theirs."""
    have = locked("torch", "demo", "dev", "docs", "fuzz")
    differ = {n: (have[n][0], v) for n, v in pinned().items() if n in have and have[n][0] != v}
    assert not differ, "run make lock"
    for requirement in asked(["vqa", "explore", "dev", "docs", "fuzz"]):
        assert requirement.specifier.contains(have[canonicalize_name(requirement.name)][0]), requirement


def test_one_version_of_each_package_is_locked():
    files = [locked(name) for name in ("demo", "dev", "docs", "fuzz")]
    versions = {(name, entry[0]) for file in files for name, entry in file.items()}
    assert len(versions) == len({name for name, _ in versions})
    assert not set(files[1]) & (set(files[2]) | set(files[3]))


@pytest.mark.parametrize(
    ("extras", "files"), [(["vqa", "explore"], ["demo"]), (["dev"], ["dev"]), (["dev", "fuzz"], ["dev", "fuzz"])]
)
def test_the_lock_has_all_that_is_needed_here(extras, files):
    """Whatever the installed packages ask for, from regard's extras on."""
    have, waiting, seen = locked("torch", "cuda", *files), list(asked(extras)), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        assert name in have, f"{requirement}: run make lock"
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                needs = importlib.metadata.requires(name) or ()
            except importlib.metadata.PackageNotFoundError:  # of the fuzzing, which has a set-up of its own
                assert "fuzz" in extras
                continue
            for needed in map(Requirement, needs):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    assert len(seen) > 50


def test_everything_is_installed_by_hash():
    text = (ROOT / "Makefile").read_text()
    assert "HASHED := install --quiet --require-hashes --no-deps" in text
    recipe = text.split("$(READY) $(APP) $(SITE) $(FUZZ):\nendif\n")[1].split("\n\n")[0]
    for name in ("torch", "$(lock)", "cuda"):
        assert f"$(HASHED) requirements/{name}.txt" in recipe
    assert "pip check" in recipe.replace("$(PIP)", "pip")
    locks = dict(re.findall(r"^\$\((\w+)\): LOCKS := (.+)$", text, re.MULTILINE))
    assert locks == {"APP": "demo", "READY": "dev", "SITE": "dev docs", "FUZZ": "dev fuzz"}
