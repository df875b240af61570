"""Runs whose records and checkpoints are in an object store: `--run s3://BUCKET/RUN`."""
