"""What the cells of a grid mean: sweeps of recipes."""
