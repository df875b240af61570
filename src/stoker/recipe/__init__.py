"""What to train: typed keys, the origin of each value, and the schedule that follows from them."""
