"""The comparison's own side: environments, sets, rounds, tables. See `benchmarks/loader.py`."""
