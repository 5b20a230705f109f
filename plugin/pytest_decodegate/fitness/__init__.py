"""Whether a host is fit to gate: checks as data, over what was read of it."""
