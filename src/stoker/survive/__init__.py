"""Survive interruptions: checkpoints, stop requests, stalls and bad numbers."""
