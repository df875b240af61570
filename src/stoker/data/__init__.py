"""From files to batches: sources, packing, order, decoding, loading. Knows nothing of training."""
