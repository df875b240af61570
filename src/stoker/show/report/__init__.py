"""A run as one HTML file, and its charts as pictures."""
