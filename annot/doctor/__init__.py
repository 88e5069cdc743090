"""Checks of the environment for `annot doctor`: drivers, profilers, permissions, containers, recorded ranges."""
