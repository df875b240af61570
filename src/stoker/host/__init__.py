"""What the kernel, the control groups and the devices say about this machine and this process."""
