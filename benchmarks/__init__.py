"""Benchmarks against other libraries: each is a ratio, measured in one run of one process."""
