"""The slow, obvious twin of each algorithm: what the tests compare with, written from the definition."""
