"""What a run writes while it trains: steps, checkpoints, verdicts."""
