"""Loaded by every run of pytest in a clone, perf tests with nothing but the declared packages included.

It is empty on purpose. The plugin comes through its entry point; what its own tests need stands in
plugin/tests/conftest.py. `pytest_plugins` may not stand here: pytest refuses it where the suite of a clone runs from
another folder, since this is then no conftest of the top level.
"""
