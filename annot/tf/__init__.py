"""Ranges in TensorFlow and Keras; importing this imports TensorFlow."""

from __future__ import annotations
