"""One process at a time: by the kernel's locks of files, or by leases where there are none."""
