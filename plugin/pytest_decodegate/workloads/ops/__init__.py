"""The other kernels of the decode step."""
