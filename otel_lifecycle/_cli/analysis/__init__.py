"""Figures of a workload, in SQL over the table of requests."""
