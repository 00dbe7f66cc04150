"""Maps: from scores to a distribution."""
