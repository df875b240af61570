"""Training logs of other programs."""
