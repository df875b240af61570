"""Copies of a packed set: in a store, and in the cache of this machine."""
