"""What prepares the pages for a builder of the site, and what checks that two builders made the same of them."""

import base64
import doctest
import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tools import check_site, compare_sites, site_pages

ROOT = Path(__file__).parent.parent
PICTURE = b"not looked into"


@pytest.fixture
def docs(tmp_path):
    """A page, and a notebook with text, code, what it printed, and a picture."""
    shown = {"output_type": "display_data", "data": {"image/png": base64.b64encode(PICTURE).decode()}}
    cells = [
        {"cell_type": "markdown", "source": ["# By hand\n", "See [start](../index.md), [other](other.ipynb)."]},
        {
            "cell_type": "code",
            "source": ["%matplotlib inline\n", "print(1 + 1)"],
            "metadata": {"alt": "A picture of two apples"},
            "outputs": [{"output_type": "stream", "text": ["2\n"]}, shown],
        },
    ]
    folder = tmp_path / "docs"
    (folder / "tutorials").mkdir(parents=True)
    (folder / "tutorials" / "hand.ipynb").write_text(json.dumps({"cells": cells}))
    (folder / "index.md").write_text("# Start\n\n[hand](tutorials/hand.ipynb#step), [safe](../SECURITY.md)\n")
    (tmp_path / "SECURITY.md").write_text("# Security\n\n[start](docs/index.md)\n")
    return folder


def test_a_notebook_becomes_a_page_and_links_follow(docs, tmp_path):
    target = tmp_path / "build" / "docs"
    target.mkdir(parents=True)
    (target / "old.md").write_text("of an earlier build")
    made = site_pages.prepare(docs, target)
    assert made == [target / "security.md", target / "tutorials" / "hand.md"]
    assert made[1].read_text() == (
        "# By hand\nSee [start](../index.md), [other](other.md).\n\n"
        "A notebook: [hand.ipynb](hand.ipynb) is the file. `make notebooks` runs it.\n\n"
        "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n\n![A picture of two apples](hand-1.png)\n"
    )
    assert (target / "tutorials" / "hand-1.png").read_bytes() == PICTURE
    assert (target / "tutorials" / "hand.ipynb").exists()
    assert (target / "index.md").read_text() == "# Start\n\n[hand](tutorials/hand.md#step), [safe](security.md)\n"
    assert (target / "security.md").read_text() == "# Security\n\n[start](index.md)\n"
    assert not (target / "old.md").exists()


def test_a_page_and_a_notebook_of_one_name_are_refused(docs, tmp_path):
    (docs / "tutorials" / "hand.md").write_text("# Mine")
    with pytest.raises(FileExistsError, match=r"tutorials/hand.md is a page already"):
        site_pages.prepare(docs, tmp_path / "target")


def test_the_navigation_names_what_is_prepared(tmp_path):
    """Zensical leaves out, without a word, an entry of the navigation that has no page."""

    class Loader(yaml.SafeLoader):
        """Also reads values of the environment, as the builders do."""

    Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node)[-1])
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    assert (settings["docs_dir"], settings["site_dir"]) == ("build/docs", "build/site")
    assert "hooks" not in settings
    site_pages.prepare(ROOT / "docs", tmp_path / "docs")
    prepared = {p.relative_to(tmp_path / "docs").as_posix() for p in (tmp_path / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", json.dumps(settings["nav"]))) == prepared


@pytest.mark.parametrize(("words", "target"), check_site.SEARCHED.items())
def test_what_people_search_for_is_on_its_page(words, target, tmp_path):
    """`make site-check` searches the built site in a browser; here the pages themselves are looked through."""
    site_pages.prepare(ROOT / "docs", tmp_path / "docs")
    page = (tmp_path / "docs" / target.partition("#")[0]).with_suffix(".md").read_text()
    assert words in " ".join(page.lower().split())


def test_a_strict_build_is_not_silenced():
    """With --quiet, mkdocs neither shows nor counts warnings, and a broken link passes."""
    recipe = re.search(r"^docs:.*\n(\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    assert "mkdocs build" in recipe
    assert "quiet" not in recipe
    assert "\nstrict: true\n" in (ROOT / "mkdocs.yml").read_text()


PAGE = """<html><nav>Different in each theme</nav><article><a id="__skip"></a><h1 id="title">A title
<a href="#title">¶</a></h1><p>Text with <a href="other.html">a link</a> and <img src="a.png" alt="a">.</article>"""


@pytest.fixture
def sites(tmp_path):
    """Two sites that differ in their themes alone."""
    for name, page in (("one", PAGE), ("two", PAGE.replace("Different", "Other").replace("with ", "with\n  "))):
        site = tmp_path / name
        (site / "assets").mkdir(parents=True)
        (site / "assets" / name).write_text("of the theme")
        (site / "page.html").write_text(
            page.replace('"other.html"', '"./other.html"' if name == "two" else '"other.html"')
        )
        (site / "other.html").write_text("<article><h1>Other</h1></article>")
        (site / "404.html").write_text(f"<article>{name}</article>")
        (site / "a.png").write_bytes(PICTURE)
    return tmp_path / "one", tmp_path / "two"


def test_sites_that_differ_by_theme_are_the_same(sites):
    assert compare_sites.differences(*sites) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Text", "Word", r"page.html: text differ, -¶Text \+¶Word"),
        ("<h1 id", "<h2 id", "page.html: headings differ"),
        ('<h1 id="title"', '<h1 id="t"', "page.html: anchors differ, -title \\+t"),
        ('href="./other.html"', 'href="page.html"', "page.html: links differ"),
        ('href="./other.html"', 'href="gone.html"', r"page.html: gone.html is missing in \S+two"),
        ('src="a.png"', 'src="b.png"', r"page.html: b.png is missing in \S+two"),
        ("Text", "Text &amp; &lt;s, p>", "page.html: text differ"),
        ("Text", "<s, p> Text", r"page.html: <s,> was text, and cannot be read in \S+two"),
    ],
)
def test_each_kind_of_difference_is_said(sites, old, new, said):
    page = sites[1] / "page.html"
    assert old in page.read_text()
    page.write_text(page.read_text().replace(old, new))
    assert any(re.match(said, line) for line in compare_sites.differences(*sites))


def test_missing_and_empty_pages_are_said(sites):
    one, two = sites
    (two / "a.png").unlink()
    (one / "page.html").write_text("<article></article>")
    (two / "more.html").write_text(PAGE)
    found = compare_sites.differences(one, two)
    assert f"a.png: only in {one}" in found
    assert f"more.html: only in {two}" in found
    assert f"page.html: empty in {one}" in found


@pytest.mark.parametrize("name", ["site_pages", "compare_sites", "check_site", "doctest_blocks"])
def test_examples_of_the_tools_run(name, monkeypatch):
    """griffe comes with the builders, which `make test` does not install; the rewriting does not need it."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=object))
    monkeypatch.delitem(sys.modules, f"tools.{name}", raising=False)
    module = importlib.import_module(f"tools.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
