"""Where anything runs. Knows nothing of images or of training."""
