"""Where a pack goes: a folder, or a location in an object store."""
