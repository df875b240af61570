"""The run directory: the one interface to what a run leaves behind."""
