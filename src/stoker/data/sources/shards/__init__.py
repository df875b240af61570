"""Sets that another tool has cut into shards: MosaicML Streaming (MDS) and LitData."""
