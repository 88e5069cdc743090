"""Keras support for every backend: layer paths, hyperparameters, epochs and batches, optimizer steps.

Its modules need Keras with an installed backend, but not TensorFlow.
"""
