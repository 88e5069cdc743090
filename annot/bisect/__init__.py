"""Search of the commit that made a program slower: git history, measured pairs of runs, sequential decisions."""
