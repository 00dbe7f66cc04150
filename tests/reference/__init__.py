"""The slow, obvious twin of each algorithm: the judge in the tests, written from the definition."""
