"""One file for each peer: `TESTS`, paths in its checkout; `REASONS`, why a test does not pass; `install()`.

A key of `REASONS` is a pattern (as in a shell) for `module.Class::test_name[parameters]`; the value is a sentence for
docs/compatibility.md. `install` puts modules of the peer's names, whose functions call regard, into `sys.modules`.
"""
