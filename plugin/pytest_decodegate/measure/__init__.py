"""Sources of replicates: gangs of ranks, windows and sweeps on a server, answers."""
