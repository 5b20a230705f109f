"""What a metric is compared with: a stored baseline, or another stack that is measured in the same minutes."""
