"""Short measurements with the real training step, which leave no trace in a run."""
