"""Prepare the folder that a site generator reads: pages are copied, notebooks converted to pages.

python tools/site_pages.py docs build/docs

A separate step before the build, so that every site generator reads the same files and needs no plugin.
"""

import argparse
import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

NOTE = "A notebook: [{name}]({link}) is the file. `make notebooks` runs it."
BESIDE = ("SECURITY.md",)  # pages in the root of the repository, where readers look for them
NOTEBOOK_LINK = re.compile(r"\(([\w/.-]*?)([\w-]+)\.ipynb(#[^)\s]*)?\)")


def prepare(docs: Path, target: Path) -> list[Path]:
    """Replace `target` by a copy of `docs` with the pages of BESIDE and those of notebooks; return these pages.

    The notebooks stay beside their pages as files, and links to them in other pages are changed to their pages.
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


def linked(markdown: str, page: str) -> str:
    """Markdown whose links to notebooks lead to their pages; only the notebook's page, named `page`, links the file.

    >>> linked("[a](tutorials/a.ipynb) and [b](b.ipynb)", "b")
    '[a](tutorials/a.md) and [b](b.ipynb)'
    >>> linked("[beside](../../SECURITY.md#versions)", "b")
    '[beside](../security.md#versions)'
    """
    for name in BESIDE:
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{name}", rf"](\1{name.lower()}", markdown)
    return NOTEBOOK_LINK.sub(lambda m: m[0] if m[2] == page else f"({m[1]}{m[2]}.md{m[3] or ''})", markdown)


def as_page(cells: list[dict[str, Any]], name: str) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook's cells, and its pictures by file name.

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
                parts.append(NOTE.format(name=f"{name}.ipynb", link=f"{name}.ipynb"))
            continue
        # Lines with % are commands for Jupyter.
        shown = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
        parts.append(f"```python\n{shown}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                alternative = cell["metadata"].get("alt", "Picture made by the cell above")
                parts.append(f"![{alternative}]({picture})")
            else:
                text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main() -> None:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("docs", type=Path, help="folder of the pages")
    arguments.add_argument("target", type=Path, help="folder to write; what is in it is removed")
    options = arguments.parse_args()
    prepare(options.docs, options.target)


if __name__ == "__main__":
    main()
