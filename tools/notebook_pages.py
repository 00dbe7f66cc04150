"""For the site: a notebook becomes a page. Text stays, code becomes a block, its outputs are shown under it."""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

LIKE = "A notebook: [{name}]({link}) is the file. `make notebooks` runs it."


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Put a page in the place of every notebook of the navigation; the notebook stays beside it as a file."""
    for notebook in [f for f in files if f.src_uri.endswith(".ipynb")]:
        cells = json.loads(Path(notebook.abs_src_path).read_text())["cells"]
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        text, pictures = as_page(cells, Path(notebook.src_uri).stem)
        files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.INCLUDED))
        for name, content in pictures.items():
            place = str(Path(notebook.src_uri).parent / name)
            files.append(File.generated(config, place, content=content))
    return files


def on_config(config: Any, **_: Any) -> Any:
    """In the navigation a notebook is named by its file; its page has the same name."""
    config["nav"] = _renamed(config["nav"])
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a notebook leads to its page; only the page itself offers the file."""
    own = Path(page.file.src_uri).stem
    return re.sub(r"\(([\w/.]*?)(\w+)\.ipynb\)", lambda m: m[0] if m[2] == own else f"({m[1]}{m[2]}.md)", markdown)


def _renamed(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_renamed(e) for e in entry]
    if isinstance(entry, dict):
        return {title: _renamed(e) for title, e in entry.items()}
    return entry.removesuffix(".ipynb") + ".md" if entry.endswith(".ipynb") else entry


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
