"""Helpers that are independent of profiling: locks, weak keys, caches, progress, protocol buffers, installed tools."""
