"""A grid: commands that depend on each other, run once each by workers that may die."""
