"""The pages hold what they say: their code runs and prints what stands under it, their links lead somewhere."""

import contextlib
import doctest
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import typed
import yaml
from typed import ROOT, SHOWN

BESIDE = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES = [*BESIDE, *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Pages whose commands begin with what those of another page have made.
CONTINUES = {"docs/guides/sharing.md": "docs/vqa.md", "docs/explore.md": "docs/vqa.md"}


def name_of(page):
    return str(page.relative_to(ROOT))


def examples(text):
    """(language, code, what it prints or None) for each block of Python and of commands.

    A block of text right under it is its output.
    """
    for block, following in itertools.pairwise([*FENCE.finditer(text), None]):
        language = block.group(2).split(" ")[0]
        if language == "python" or language in typed.LANGUAGES:
            adjacent = following is not None and not text[block.end() : following.start()].strip()
            shown = following.group(3) if adjacent and following.group(2) == "text" else None
            yield language, block.group(3), shown


def python_examples(text):
    return [(code, shown) for language, code, shown in examples(text) if language == "python"]


def page_commands():
    """Each command of each page."""
    blocks = ((language, code) for page in PAGES for language, code, _ in examples(page.read_text()))
    return [command for language, code in blocks if language != "python" for command in typed.commands(code)]


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


@pytest.fixture(scope="session")
def folder_after(tmp_path_factory):
    """From a page to the folder that its blocks leave, run one after the other as a reader would type them."""
    folders = {}

    def folder_of(page):
        if page not in folders:
            folder = tmp_path_factory.mktemp(page.stem)
            if before := CONTINUES.get(name_of(page)):
                shutil.copytree(folder_of(ROOT / before), folder, dirs_exist_ok=True)
            else:
                typed.write_stand_ins(folder)
            follow(page, folder)
            folders[page] = folder
        return folders[page]

    return folder_of


def follow(page, folder):
    """Run the blocks of a page in a folder, and compare what they print with what is shown."""
    names = {"__name__": "page"}
    with contextlib.chdir(folder):
        for language, code, shown in examples(page.read_text()):
            printed = io.StringIO()
            if language == "python":
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, name_of(page), "exec"), names)
            else:
                printed.write(typed.perform(code))
            if shown is not None:
                assert doctest.OutputChecker().check_output(shown, printed.getvalue(), SHOWN), printed.getvalue()


@pytest.mark.parametrize("page", [p for p in PAGES if list(examples(p.read_text()))], ids=name_of)
def test_blocks_run_and_print_what_is_shown(page, folder_after):
    """Python and commands; tests/typed.py lists the commands that are not run, and why."""
    folder_after(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_exist(page):
    """`regard train --preset small` within a line: the command, and each of its options."""
    for line in re.findall(r"`(regard [a-z][^`\n<]*)`", FENCE.sub("", page.read_text())):
        name, *rest = shlex.split(line)[1:]
        command = typed.parser(name)
        command = getattr(command, "commands", {}).get(rest[0] if rest else "", command)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known | {"--help", "--debug"}, line


@pytest.mark.parametrize("begin", typed.NOT_RUN)
def test_what_is_not_run_is_on_a_page(begin):
    """Else the list would hide a command that is written later."""
    assert any(typed.NOT_RUN[begin] == command.reason for command in page_commands())


@pytest.mark.parametrize("code", [code for code, _ in python_examples((ROOT / "README.md").read_text())])
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
    page = "```python\nprint(2)\n```\n\n```text\n2\n```\n\n```sh\nregard maps\n```\n\n# A `b` c\n"
    assert list(examples(page)) == [("python", "print(2)\n", "2\n"), ("sh", "regard maps\n", None)]
    assert not doctest.OutputChecker().check_output("2", "3", SHOWN)
    assert LINK.findall("![alt](a.png)") == [("!", "alt", "a.png")]


def test_commands_are_read_as_a_shell_reads_them():
    block = 'regard ask out/a \\\n    "What is it?" --json  # the answer\n\n# a comment\nmake test\n'
    assert [command.words for command in typed.commands(block)] == [
        ["regard", "ask", "out/a", "What is it?", "--json"],
        ["make", "test"],
    ]
    dialogue = typed.commands('$ regard a "b"\nline\nanother\n$ regard c\n')
    assert [(str(command), command.shown) for command in dialogue] == [
        ("regard a b", "line\nanother\n"),
        ("regard c", None),
    ]
    assert typed.commands("regard ask 'a | b; c'\n")[0].words[-1] == "a | b; c"
    with pytest.raises(AssertionError, match="one command on a line"):
        typed.commands("regard doctor > file.txt\n")


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("regard ask nowhere a.png 'What?'", "nowhere has no checkpoint"),
        ("$ regard ask nowhere a.png 'What?'\nAll is well.", "nowhere has no checkpoint"),
        ("regard doctor --no-such-option", "No such option"),
        ("ls", "add it to NOT_RUN"),
        ("make no-such-target", "make no-such-target"),
        ("python tools/peers_no", "add it to NOT_RUN"),
        ("regard pretrain shards/ --no-such-option", "No such option"),
    ],
)
def test_a_wrong_command_is_found(block, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=said):
        typed.perform(block)


def test_files_named_beside_chapters_exist():
    table = (ROOT / "docs" / "citing.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`", table)
    assert len(named) > 12
    folders = (ROOT / "src" / "regard", ROOT)
    assert [path for path in named if not any((folder / path).is_file() for folder in folders)] == []


def test_the_citation_has_what_its_format_asks_for():
    """The keys that version 1.2.0 of the format requires; the thesis by its title."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year"} <= reference.keys()
        assert all(author.keys() == {"family-names", "given-names"} for author in reference["authors"])
    thesis = next(reference for reference in citation["references"] if reference["type"] == "thesis")
    assert thesis["title"] in (ROOT / "docs" / "citing.md").read_text()
