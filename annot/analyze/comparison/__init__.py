"""Comparison of runs of the same training: whether they can be compared, and what became slower."""
