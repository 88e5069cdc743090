"""Sweeps: a grid of runs, one table of their results, and its charts."""
