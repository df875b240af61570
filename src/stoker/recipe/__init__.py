"""What to train: typed keys, where each value came from, and what follows from them."""
