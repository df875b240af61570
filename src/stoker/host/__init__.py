"""Facts about this machine and process, from the kernel, the control groups and the devices."""
