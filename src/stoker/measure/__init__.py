"""Where the time of a run goes. Knows nothing of training."""
