"""For the site: prepare the folder that a builder reads. Pages are copied, and a notebook becomes a page.

python tools/site_pages.py docs build/docs

It is done ahead of the build, so that every builder makes the same pages from the same files and needs no plugin.
"""

import argparse
import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

LIKE = "A notebook: [{name}]({link}) is the file. `make notebooks` runs it."
BESIDE = ("SECURITY.md",)  # pages that stand beside the folder, where readers of the repository look for them
NOTEBOOK_LINK = re.compile(r"\(([\w/.-]*?)([\w-]+)\.ipynb(#[^)\s]*)?\)")


def prepare(docs: Path, target: Path) -> list[Path]:
    """Fill `target` anew with what `docs` holds, the pages beside it, and those of its notebooks; return the new ones.

    The notebooks stay beside their pages as files, and links to them in other pages lead to their pages.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(docs, target)
    for page in target.rglob("*.md"):
        page.write_text(linked(page.read_text(), page.stem))
    pages = []
    for name in (name for name in BESIDE if (docs.parent / name).exists()):
        pages.append(target / name.lower())
        pages[-1].write_text((docs.parent / name).read_text().replace(f"]({docs.name}/", "]("))
    for notebook in sorted(target.rglob("*.ipynb")):
        page = notebook.with_suffix(".md")
        if page.exists():
            raise FileExistsError(f"{page.relative_to(target)} is a page already: rename it, or its notebook")
        text, pictures = as_page(json.loads(notebook.read_text())["cells"], notebook.stem)
        page.write_text(linked(text, notebook.stem))
        for name, content in pictures.items():
            (notebook.parent / name).write_bytes(content)
        pages.append(page)
    return pages


def linked(markdown: str, own: str) -> str:
    """A link to a notebook leads to its page; only the page itself, whose name is `own`, offers the file.

    >>> linked("[a](tutorials/a.ipynb) and [b](b.ipynb)", "b")
    '[a](tutorials/a.md) and [b](b.ipynb)'
    >>> linked("[beside](../../SECURITY.md#versions)", "b")
    '[beside](../security.md#versions)'
    """
    for name in BESIDE:
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{name}", rf"](\1{name.lower()}", markdown)
    return NOTEBOOK_LINK.sub(lambda m: m[0] if m[2] == own else f"({m[1]}{m[2]}.md{m[3] or ''})", markdown)


def as_page(cells: list[dict[str, Any]], name: str) -> tuple[str, dict[str, bytes]]:
    """The page, and the pictures that belong to it by name.

    >>> as_page([{"cell_type": "markdown", "source": ["# Title"]}], "a")[0].splitlines()[0]
    '# Title'
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if len(parts) == 1:
                parts.append(LIKE.format(name=f"{name}.ipynb", link=f"{name}.ipynb"))
            continue
        # Lines with % speak to Jupyter, not to readers.
        shown = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
        parts.append(f"```python\n{shown}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                described = cell["metadata"].get("alt", "Picture made by the cell above")
                parts.append(f"![{described}]({picture})")
            else:
                text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main() -> None:
    """Prepare, and say nothing: the builder has the last word."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("docs", type=Path)
    arguments.add_argument("target", type=Path)
    given = arguments.parse_args()
    prepare(given.docs, given.target)


if __name__ == "__main__":
    main()
