"""For the reference (griffe): examples in docstrings (>>>) become code blocks, docs/math.md a link; < is escaped."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n(?!>>>)|\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(```.*?```|`[^`]*`)", re.DOTALL)
TAG = re.compile(r"<(?=[A-Za-z/!])")


def as_markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> as_markdown("Add.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    >>> as_markdown("The largest <s, p>, not `<s, p>`.")
    'The largest &lt;s, p>, not `<s, p>`.'
    """
    text = EXAMPLE.sub(lambda example: f"```pycon\n{example.group().rstrip()}\n```", text)
    # An inner product <s, p> would be parsed as an HTML tag and disappear.
    text = "".join(part if part.startswith("`") else TAG.sub("&lt;", part) for part in CODE.split(text))
    return text.replace("docs/math.md", "[equations](../math.md)")


class DoctestBlocks(griffe.Extension):
    """Converts the docstring of every object that griffe loads."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
