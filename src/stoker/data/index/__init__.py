"""The index of a split: one row a stored image, in one file or, where it is large, in parts."""
