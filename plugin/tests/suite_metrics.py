"""The metrics that the suite declares, as pytest collects them in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

SUITE = Path(__file__).parents[2] / "perf_tests"

_COLLECT = """
import json, pytest, sys
from pathlib import Path
from pytest_decodegate.settings.markers import declared_metrics

class Names:
    def pytest_collection_finish(self, session):
        found = [declared_metrics(item) for item in session.items]
        Path(sys.argv[2]).write_text(json.dumps(sorted({name for each in found for name in each.names})))

args = ["-q", "-m", "perf", "--perf-extended", "--collect-only", "-p", "no:cacheprovider", sys.argv[1]]
sys.exit(pytest.main(args, plugins=[Names()]))
"""


@cache
def suite_metrics() -> frozenset[str]:
    """Names of all metrics of perf_tests, extended ones and stand-ins too; collected once for all tests."""
    with TemporaryDirectory() as folder:
        answer = Path(folder, "metrics.json")
        done = subprocess.run(
            [sys.executable, "-c", _COLLECT, str(SUITE), str(answer)], cwd=SUITE.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return frozenset(json.loads(answer.read_text()))
