"""The code in README.md runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
def test_block_runs(block, capsys):
    exec(compile(block, str(README), "exec"), {})
