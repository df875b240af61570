"""HTML pages about studies: sweeps and studies of tickets."""
