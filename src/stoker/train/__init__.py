"""Training: from batches of images to weights."""
