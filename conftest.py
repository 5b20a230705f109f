"""For this repository's own tests; the plugin itself comes through its entry point."""

pytest_plugins = ["pytester"]
