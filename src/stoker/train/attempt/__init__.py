"""One attempt of a run, from its start to its end."""
