"""The model card: the README.md that the Hugging Face Hub shows, with its metadata (YAML) on top."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LIBRARY = "regard"


@dataclass(frozen=True)
class Section:
    """A part of a card: a heading and the Markdown under it.

    >>> Section("Data", "Drawn scenes.").heading
    'Data'
    """

    heading: str
    text: str


@dataclass(frozen=True)
class Card:
    """What a model is, how to load it, its settings and what is known of it.

    `name`: of the repository on the Hub, or of the folder.
    `summary`: a paragraph.
    `task`: one of the Hub's pipeline tags.
    `code`: loads the model by its name.
    `settings`: of the model, shown as a table.
    `tags`: further ones for the Hub; default none.
    `license`: its identifier; default None, none is stated.
    `sections`: further parts of the text; default none.
    `metrics`: numbers that the Hub shows beside the model, by data set and metric; default none.

    >>> card = Card("me/pool", "A pool.", "image-feature-extraction", code="x = 1", settings={"dim": 4})
    >>> print(str(card).split("---")[1].strip())
    library_name: regard
    pipeline_tag: image-feature-extraction
    tags:
    - visual-attention
    """

    name: str
    summary: str
    task: str
    code: str
    settings: Mapping[str, Any]
    tags: Sequence[str] = ()
    license: str | None = None
    sections: Sequence[Section] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        """The whole README.md."""
        rows = [[f"`{key}`", f"`{json.dumps(value)}`"] for key, value in self.settings.items()]
        parts = [
            f"---\n{self._front()}---",
            f"# {self.name}",
            self.summary,
            "## Use",
            f"```python\n{self.code.strip()}\n```",
            *(f"## {section.heading}\n\n{section.text}" for section in self.sections),
            "## Settings",
            markdown_table(["setting", "value"], rows),
        ]
        return "\n\n".join(parts) + "\n"

    def _front(self) -> str:
        """The metadata for the Hub, as YAML; a JSON string is also a YAML string."""
        lines = [f"library_name: {LIBRARY}", f"pipeline_tag: {self.task}"]
        if self.license is not None:
            lines.append(f"license: {json.dumps(self.license)}")
        lines += ["tags:", *(f"- {tag}" for tag in ("visual-attention", *self.tags))]
        if self.metrics:
            lines += ["model-index:", f"- name: {json.dumps(self.name)}", "  results:"]
        for data, values in self.metrics.items():
            lines += ["  - task:", f"      type: {self.task}", "    dataset:"]
            lines += [f"      name: {json.dumps(data)}", f"      type: {json.dumps(data)}", "    metrics:"]
            for metric, value in values.items():
                lines += [f"    - type: {json.dumps(metric)}", f"      value: {value:.4f}"]
        return "\n".join(lines) + "\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    text[1] = text[1].replace(" ", "")
    return "\n".join(text)
