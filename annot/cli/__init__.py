"""Command line of annot, one module per command."""
