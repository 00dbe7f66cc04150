"""What the tests of attention share."""

import pytest


@pytest.fixture
def small_blocks(monkeypatch):
    """Let every computation that can be done in blocks be done in blocks of one or two queries, also where the sparse
    kernel would do it."""
    monkeypatch.setattr("regard.attention.query_blocks.BUDGET", 64)
    monkeypatch.setattr("regard.attention.sparse.Sparse.suits", lambda self, call: False)
