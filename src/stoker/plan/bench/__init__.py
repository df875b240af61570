"""Training speed and cost of a matrix of cells, measured on this machine and compared."""
