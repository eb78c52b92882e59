"""The figures of a workload, gathered request by request in bounded memory."""
