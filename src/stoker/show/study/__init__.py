"""What a person sees of grids of runs."""
