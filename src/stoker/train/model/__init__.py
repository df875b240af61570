"""The model: how it is built."""
