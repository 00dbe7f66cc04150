"""Compare two built sites: the same pages with the same text, headings, anchors, links and pictures, no file missing.

python tools/compare_sites.py build/site build/site-zensical

Two site generators that agree on all of this are interchangeable. What surrounds a page (navigation, search, colours)
depends on the theme; tools/check_site.py checks it in a browser.
"""

import argparse
import difflib
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Files of the theme, and machine-readable ones: each site generator has its own.
GENERATED = ("assets/", "search/", "search.json", "sitemap.xml", "objects.inv", "404.html")


@dataclass
class Content:
    """The content of a page, without navigation and the like."""

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
        """Start outside of the article."""
        super().__init__()
        self.depth = 0  # of articles alone: other tags may lack their end
        self.fragments: list[str] = []
        self.heading: tuple[str, str, int] | None = None
        self.content = Content()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        attributes = {name: value or "" for name, value in attrs}
        self.depth += tag == "article"
        if not self.depth:
            return
        if not tag.replace("-", "").isalnum():
            self.content.swallowed.append(f"<{tag}>")
        # The link that skips the navigation is inside or outside of the article, depending on the theme.
        if "id" in attributes and attributes["id"] != "__skip":
            self.content.anchors.append(attributes["id"])
        if attributes.get("href"):
            self.content.links.append(attributes["href"].removeprefix("./"))
        if "src" in attributes:
            self.content.pictures.append(attributes["src"])
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.heading = (tag, attributes.get("id", ""), len(self.fragments))

    def handle_endtag(self, tag: str) -> None:
        """Called by the parser."""
        if self.heading and tag == self.heading[0]:
            words = " ".join("".join(self.fragments[self.heading[2] :]).split())
            self.content.headings.append(f"{tag} {self.heading[1]}: {words}")
            self.heading = None
        self.depth -= tag == "article"

    def handle_data(self, data: str) -> None:
        """Called by the parser."""
        if self.depth:
            self.fragments.append(data)


def content(page: str) -> Content:
    """The content of a page of HTML."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    reader.content.text = "".join(reader.fragments).split()
    return reader.content


def files(site: Path) -> set[str]:
    """The files of a site that come from its pages, by name."""
    names = {p.relative_to(site).as_posix() for p in site.rglob("*") if p.is_file()}
    return {name for name in names if not name.startswith(GENERATED)}


def missing(site: Path, page: str, targets: list[str]) -> list[str]:
    """The links and pictures of a page whose target is not a file of the site."""
    broken = []
    for target in targets:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or not parts.path:
            continue
        place = (site / page).parent / unquote(parts.path)
        if not (place.is_file() or (place / "index.html").is_file()):
            broken.append(target)
    return broken


def differences(first: Path, second: Path) -> list[str]:
    """The differences between two sites, one line each."""
    one, two = files(first), files(second)
    messages = [f"{name}: only in {first}" for name in sorted(one - two)]
    messages += [f"{name}: only in {second}" for name in sorted(two - one)]
    for name in sorted(n for n in one & two if n.endswith(".html")):
        pages = [content((site / name).read_text()) for site in (first, second)]
        for site, page in zip((first, second), pages, strict=True):
            if not page.text or not page.headings:
                messages.append(f"{name}: empty in {site}")
            messages += [f"{name}: {tag} was text, and cannot be read in {site}" for tag in page.swallowed]
            messages += [
                f"{name}: {target} is missing in {site}" for target in missing(site, name, page.links + page.pictures)
            ]
        for kind in ("text", "headings", "anchors", "links", "pictures"):
            a, b = (getattr(page, kind) for page in pages)
            if a != b:
                lines = list(difflib.unified_diff(a, b, lineterm="", n=0))[2:14]
                messages.append(f"{name}: {kind} differ, {' '.join(line for line in lines if line[0] != '@')}")
    return messages


def main() -> None:
    """Compare, and print the differences and the number of pages."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("first", type=Path, help="folder of a built site")
    arguments.add_argument("second", type=Path, help="folder of another one")
    options = arguments.parse_args()
    pages = [name for name in files(options.first) if name.endswith(".html")]
    if not pages:
        sys.exit(f"{options.first} holds no pages. Build them: make docs-both")
    messages = differences(options.first, options.second)
    print(*messages, sep="\n", end="\n" if messages else "")
    print(f"{len(pages)} pages in {options.first} and {options.second}, {len(messages)} differences")
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
