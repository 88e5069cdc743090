"""Many ranks: one profile each, read side by side in other processes, then compared layer by layer.

What runs before the work is given out loads nothing heavy: `annot.ranks.files` finds the profiles,
`annot.ranks.executors` gives them out, `annot.ranks.task` is done for each, `annot.ranks.gather` puts the
results together.
"""
