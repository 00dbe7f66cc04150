"""The pages hold what they say: their code runs and prints what stands under it, their links lead somewhere."""

import contextlib
import doctest
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BESIDE = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES = [*BESIDE, *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
SHOWN = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def name_of(page):
    return str(page.relative_to(ROOT))


def examples(text):
    """(code, what it prints or None) for each block of Python; a block of text right under it is its output."""
    for block, following in itertools.pairwise([*FENCE.finditer(text), None]):
        if block.group(2).split(" ")[0] == "python":
            adjacent = following is not None and not text[block.end() : following.start()].strip()
            shown = following.group(3) if adjacent and following.group(2) == "text" else None
            yield block.group(3), shown


def headings(page):
    """The anchors of a page, as the site makes them."""
    text = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def links(page):
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)))


@pytest.mark.parametrize("page", [p for p in PAGES if list(examples(p.read_text()))], ids=name_of)
def test_code_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    """The blocks of a page run one after the other, as a reader would type them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for code, shown in examples(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name_of(page), "exec"), names)
        if shown is not None:
            assert doctest.OutputChecker().check_output(shown, printed.getvalue(), SHOWN), printed.getvalue()


@pytest.mark.parametrize("code", [code for code, _ in examples((ROOT / "README.md").read_text())])
def test_a_block_of_the_readme_runs_alone(code, tmp_path, monkeypatch, capsys):
    """Who copies one block out of the README need not look for the imports of another."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", PAGES + NOTEBOOKS, ids=name_of)
def test_links_lead_somewhere(page):
    for _, _, target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        destination = (page.parent / path).resolve() if path else page
        assert destination.exists(), target
        assert not anchor or anchor in headings(destination), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_say_what_they_show(page):
    """Alternative text of some words; markup of one's own has no place in the pages."""
    for picture, words, target in links(page):
        assert not picture or len(words.split()) >= 4, target
    assert "<img" not in page.read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_are_kept_with_small_outputs_and_no_errors(path):
    """`make notebooks` runs them; here only what is kept is looked at."""
    assert path.stat().st_size < 400_000
    cells = json.loads(path.read_text())["cells"]
    assert "".join(cells[0]["source"]).startswith("# ")
    outputs = [(cell, output) for cell in cells for output in cell.get("outputs", [])]
    assert outputs, "python tools/notebooks.py --write keeps them"
    for cell, output in outputs:
        assert output["output_type"] != "error"
        if "image/png" in output.get("data", {}):
            assert len(cell["metadata"]["alt"].split()) >= 4


def test_the_diff_of_a_map_applies_and_its_tests_pass(tmp_path):
    """In a copy of the files that it changes or needs."""
    page = (ROOT / "docs" / "adding-a-map.md").read_text()
    (diff,) = (block.group(3) for block in FENCE.finditer(page) if block.group(2) == "diff")
    for part in ("docs/math.md", "docs/reference/regard.md", "pyproject.toml", "tests/conftest.py"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    new_tests = ["tests/maps/test_capped.py", "--doctest-modules", "src/regard/maps/capped.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *new_tests]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_checks_can_fail():
    page = "```python\nprint(2)\n```\n\n```text\n2\n```\n\n```python\n3\n```\n\n# A `b` c\n"
    assert list(examples(page)) == [("print(2)\n", "2\n"), ("3\n", None)]
    assert not doctest.OutputChecker().check_output("2", "3", SHOWN)
    assert LINK.findall("![alt](a.png)") == [("!", "alt", "a.png")]
