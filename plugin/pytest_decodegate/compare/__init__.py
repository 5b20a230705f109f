"""Stored baselines beside each other: which files the user means, and what each metric did between two of them."""
