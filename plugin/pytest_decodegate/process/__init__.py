"""Processes that leave nothing behind: the guard, and what is asked of a process."""
