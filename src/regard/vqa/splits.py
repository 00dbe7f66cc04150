"""The usual names of splits, for commands that look for all of them and for the completion of the command line."""

SPLIT_NAMES = ("train", "val", "test", "pairs", "test-dev")
"""Those of VQA-v2, and of the scenes that `regard scenes` writes; a table may have others in its column `split`."""
