"""Processes: the guard under which they leave nothing behind, and questions to them."""
