"""Starts processes, here and on other machines. Knows nothing of images or of training."""
