"""What a run has cost, from its events, and the budget that it must not pass."""
