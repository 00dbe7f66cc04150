"""For the reference: examples in docstrings (>>> ...) become code blocks, equation numbers links; <s, p> stays text."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n(?!>>>)|\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(```.*?```|`[^`]*`)", re.DOTALL)
TAG = re.compile(r"<(?=[A-Za-z/!])")


def as_markdown(text: str) -> str:
    """A docstring as a page shows it.

    >>> as_markdown("Add.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    >>> as_markdown("The largest <s, p>, not `<s, p>`.")
    'The largest &lt;s, p>, not `<s, p>`.'
    """
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```", text)
    # A product in angle brackets would be read as a tag of HTML, and vanish.
    text = "".join(part if part.startswith("`") else TAG.sub("&lt;", part) for part in CODE.split(text))
    return text.replace("docs/math.md", "[equations](../math.md)")


class DoctestBlocks(griffe.Extension):
    """Rewrites the docstring of everything that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
