"""One pytest session: its state, the perf fixture, and what came out."""
