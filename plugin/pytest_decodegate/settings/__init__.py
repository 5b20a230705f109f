"""Options, ini values, markers and stacks, read and checked once."""
