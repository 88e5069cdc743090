"""The fixture `annot_gate` of pytest: runs of a test, their comparison with a baseline, and pytest-benchmark's JSON."""
