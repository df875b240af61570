"""A run on machines that were measured: this one, and those of result files."""
