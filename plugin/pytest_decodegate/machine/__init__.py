"""The machine under test: what it is, what runs on it, and what disturbed it while measuring."""
