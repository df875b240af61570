"""Engines that could carry the cells of a grid: one file an engine, each run by its own Python.

Invariants: an engine's file imports its own packages and `spec`, nothing from Stoker: every cell is
the same command, so that only the engine differs. The same file starts a grid and goes on with it,
in the way that the engine's documentation names. Its last line of output is JSON: how many cells
have a result in the engine's own records, and how many results there are.
"""
