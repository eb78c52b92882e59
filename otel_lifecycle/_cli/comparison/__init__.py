"""Two runs of one workload, side by side: are they comparable, what differs, and how sure is it."""
