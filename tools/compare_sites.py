"""Compare two built sites: the same pages with the same text, headings, anchors, links and pictures, no file missing.

python tools/compare_sites.py build/site build/site-zensical

Two builders that agree on all of this can stand in for each other. What surrounds a page (navigation, search, colours)
is the theme's own business, and tools/check_site.py looks at it in a browser.
"""

import argparse
import difflib
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a theme brings, and what is made for machines: each builder has its own.
OWN = ("assets/", "search/", "search.json", "sitemap.xml", "objects.inv", "404.html")


@dataclass
class Content:
    """What a reader finds on a page, without what surrounds it."""

    text: list[str] = field(default_factory=list)  # words
    headings: list[str] = field(default_factory=list)  # "h2 anchor: words"
    anchors: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    swallowed: list[str] = field(default_factory=list)  # text in angle brackets that a browser takes for a tag


class Reader(HTMLParser):
    """Collects the content of the one `article` of a page.

    >>> content("<nav>a</nav><article><h1 id='t'>A  title</h1><img src='a.png'></article>")
    Content(text=['A', 'title'], headings=['h1 t: A title'], anchors=['t'], links=[], pictures=['a.png'], swallowed=[])
    """

    def __init__(self) -> None:
        """Outside of the article, with nothing found."""
        super().__init__()
        self.depth = 0  # of articles alone: other tags may lack their end
        self.said: list[str] = []
        self.heading: tuple[str, str, int] | None = None
        self.content = Content()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        given = {name: value or "" for name, value in attrs}
        self.depth += tag == "article"
        if not self.depth:
            return
        if not tag.replace("-", "").isalnum():
            self.content.swallowed.append(f"<{tag}>")
        # The link that jumps over the navigation stands inside or outside, by the theme.
        if "id" in given and given["id"] != "__skip":
            self.content.anchors.append(given["id"])
        if given.get("href"):
            self.content.links.append(given["href"].removeprefix("./"))
        if "src" in given:
            self.content.pictures.append(given["src"])
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.heading = (tag, given.get("id", ""), len(self.said))

    def handle_endtag(self, tag: str) -> None:
        """Called by the parser."""
        if self.heading and tag == self.heading[0]:
            words = " ".join("".join(self.said[self.heading[2] :]).split())
            self.content.headings.append(f"{tag} {self.heading[1]}: {words}")
            self.heading = None
        self.depth -= tag == "article"

    def handle_data(self, data: str) -> None:
        """Called by the parser."""
        if self.depth:
            self.said.append(data)


def content(page: str) -> Content:
    """The content of a page of HTML."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    reader.content.text = "".join(reader.said).split()
    return reader.content


def files(site: Path) -> set[str]:
    """The files of a site that come from its pages, by name."""
    names = {p.relative_to(site).as_posix() for p in site.rglob("*") if p.is_file()}
    return {name for name in names if not name.startswith(OWN)}


def missing(site: Path, page: str, targets: list[str]) -> list[str]:
    """The links and pictures of a page that lead to no file of the site."""
    lost = []
    for target in targets:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or not parts.path:
            continue
        place = (site / page).parent / unquote(parts.path)
        if not (place.is_file() or (place / "index.html").is_file()):
            lost.append(target)
    return lost


def differences(first: Path, second: Path) -> list[str]:
    """What a reader of one site would miss in the other: nothing, if two builders agree."""
    one, two = files(first), files(second)
    found = [f"{name}: only in {first}" for name in sorted(one - two)]
    found += [f"{name}: only in {second}" for name in sorted(two - one)]
    for name in sorted(n for n in one & two if n.endswith(".html")):
        pages = [content((site / name).read_text()) for site in (first, second)]
        for site, page in zip((first, second), pages, strict=True):
            if not page.text or not page.headings:
                found.append(f"{name}: empty in {site}")
            found += [f"{name}: {tag} was text, and cannot be read in {site}" for tag in page.swallowed]
            found += [
                f"{name}: {lost} is missing in {site}" for lost in missing(site, name, page.links + page.pictures)
            ]
        for kind in ("text", "headings", "anchors", "links", "pictures"):
            a, b = (getattr(page, kind) for page in pages)
            if a != b:
                lines = list(difflib.unified_diff(a, b, lineterm="", n=0))[2:14]
                found.append(f"{name}: {kind} differ, {' '.join(line for line in lines if line[0] != '@')}")
    return found


def main() -> None:
    """Compare, and say how many pages there were."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("first", type=Path)
    arguments.add_argument("second", type=Path)
    given = arguments.parse_args()
    pages = [name for name in files(given.first) if name.endswith(".html")]
    if not pages:
        sys.exit(f"{given.first} holds no pages. Build them: make docs-both")
    found = differences(given.first, given.second)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(pages)} pages in {given.first} and {given.second}, {len(found)} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
