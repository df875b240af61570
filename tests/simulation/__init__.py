"""A simulated fleet: the product's own launcher, rendezvous, lease and worker code on simulated
machines, disks, links and clocks, in thousands of schedules that follow from a seed each."""
