"""Profiles opened for reports: one (`run.py`), or one per rank (`gather.py`), read in parallel processes.

`annot.runs.profile_files` finds the profiles, `annot.runs.executors` distributes them. Both import no heavy packages.
"""
