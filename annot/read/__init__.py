"""Readers of profiles, one package per format. `annot.load` selects the reader by the content of the file."""
