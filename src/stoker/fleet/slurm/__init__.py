"""Jobs of SLURM: the batch file, its submission, and what happens when a job ends."""
