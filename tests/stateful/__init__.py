"""Any interleaving of what servers, threads and the garbage collector do."""
