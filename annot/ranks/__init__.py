"""Comparison of ranks: read one profile per rank in parallel processes, then compare the ranks layer by layer.

`annot.ranks.profile_files` finds the profiles, `annot.ranks.executors` distributes them, `annot.ranks.report_task`
reads each one, and `annot.ranks.gather` merges the results. The first two import no heavy packages.
"""
