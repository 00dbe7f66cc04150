"""Measurements against peers: each is a ratio taken in one run of one process, on the reader's own machine."""
