"""Intervals, noise and change points."""
