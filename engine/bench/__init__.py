"""Whole benchmarks: many tasks through the same loop that a user runs, one JSON line each."""
