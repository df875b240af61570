"""Image loaders that ours is compared with: one file a loader, each run in a separate process.

Invariants: a peer imports nothing from Stoker (except `stoker.py`) and no other peer's packages.
All peers get the same stored bytes and prepare their own storage from them. They are run as `python
-m peers.NAME`, so that a file may have the name of the package it uses.
"""
