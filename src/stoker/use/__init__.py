"""Using a trained model: evaluate it, predict with it, export it."""
