"""What an hour of a machine costs, and what a run has cost."""
