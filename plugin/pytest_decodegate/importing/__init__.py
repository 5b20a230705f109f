"""Results of other tools, read as baselines."""
