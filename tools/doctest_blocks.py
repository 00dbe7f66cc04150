"""For the reference: examples in docstrings become code blocks, arguments a list, equation numbers links."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n(?!>>>)|\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(```.*?```|`[^`]*`)", re.DOTALL)
TAG = re.compile(r"<(?=[A-Za-z/!])")
ARGUMENTS = re.compile(r"(?<=\n\n)`\w+`(?:, `\w+`)*: .*?(?=\n\n|\Z)", re.DOTALL)
ARGUMENT = re.compile(r"^(?=`\w+`(?:, `\w+`)*: )", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring as a page shows it.

    >>> as_markdown("Add.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    >>> as_markdown("The largest <s, p>, not `<s, p>`.")
    'The largest &lt;s, p>, not `<s, p>`.'
    >>> as_markdown("Divide.\\n\\n`x`: a number.\\n`y`: another,\\nnot 0.").splitlines()
    ['Divide.', '', '- `x`: a number.', '- `y`: another,', 'not 0.']
    """
    text = ARGUMENTS.sub(lambda paragraph: ARGUMENT.sub("- ", paragraph.group()), text)
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
