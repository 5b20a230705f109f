"""The runtime of workloads on a rank: clocks, bursts, checks, slowdowns."""
