"""From a source to a packed set: shards, an index and a description."""
