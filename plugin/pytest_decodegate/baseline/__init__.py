"""Stored JSON baselines: what they hold, and how they are found, written and refused."""
