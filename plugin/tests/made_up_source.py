"""The beginning of a module of perf tests whose times are made up: for what a run does that measures nothing."""

from __future__ import annotations

SOURCE = """
    import pytest
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate


    class Source:
        level = "process"
        taken = 0

        def take(self, count):
            self.taken += count
            return Taken("process", tuple(Replicate((1 + i / 1000, 1.001 + i / 1000)) for i in range(self.taken)))
"""
"""Indented as the texts that follow it are."""
