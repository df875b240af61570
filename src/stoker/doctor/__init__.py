"""What this machine can do: the measurements behind `stoker doctor`."""
