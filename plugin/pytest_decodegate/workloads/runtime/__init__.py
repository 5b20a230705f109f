"""What every workload needs on a rank: clocks, bursts, checks, slowdowns."""
