"""The tables of a packed set: written from the parts of its shards, and counted on the way."""
