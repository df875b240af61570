"""Rented machines by SkyPilot: the task file, the command `sky`, the lease of a machine."""
