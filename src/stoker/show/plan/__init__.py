"""What a plan shows: machines with their ranges, and claims."""
