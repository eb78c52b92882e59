"""What a workload amounts to, gathered request by request in bounded memory."""
