"""The official VQA evaluation, which has no tests: its code and ours score the same random answers."""

from __future__ import annotations

from pathlib import Path

TESTS = (str(Path(__file__).parent.parent / "cases" / "test_vqa_answers.py"),)
REASONS: dict[str, str] = {}


def install() -> None:
    """Nothing: the tests import regard, and read the official code from the checkout."""
