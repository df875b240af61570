"""Image loaders to compare ours with: one file a loader, each run as a process of its own.

Invariants: a peer imports nothing of Stoker's (but `stoker.py` itself) and nothing of another
peer's packages; it gets the same stored bytes as all others and prepares its own storage from them.
They are run as `python -m peers.NAME`, so that a file may be called like the package it uses.
"""
