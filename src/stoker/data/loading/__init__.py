"""From a packed set to batches: order, crops, decoding threads."""
