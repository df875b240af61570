"""Pictures that a command writes: the images of a batch."""
