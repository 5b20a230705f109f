"""For the tests of the plugin, run by their path; the plugin itself comes through its entry point.

Not at the top level: there it would be loaded with the perf tests of a clone, whatever folder a run starts in.
"""

pytest_plugins = ["pytester"]
