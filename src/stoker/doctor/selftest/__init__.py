"""The acceptance of a machine, behind `stoker selftest`: each promise measured where it is made."""
