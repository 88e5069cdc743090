"""Jupyter and IPython: the magic ``%annot`` and the layer table of `annot.layers`."""
