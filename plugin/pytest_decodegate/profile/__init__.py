"""A decode step as a profiler saw it: traces, steps, categories, the table, and whether it can be true."""
