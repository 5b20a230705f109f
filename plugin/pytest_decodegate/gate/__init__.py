"""From numbers to a verdict: pure functions, no pytest, no torch, no files."""
