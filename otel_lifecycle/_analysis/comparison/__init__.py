"""Two runs of one workload, side by side: whether they are comparable, what differs, and how certain that is."""
