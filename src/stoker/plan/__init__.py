"""What a run will take on machines that one has not rented, and what it will cost there."""
