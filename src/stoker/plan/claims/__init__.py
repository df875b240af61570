"""Stated figures of runs, and which of them contradict each other."""
