"""Ranks under the real torchrun, kept alive between tests and never left behind."""
