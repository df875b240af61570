"""What a person sees of measurements of a machine."""
