"""`decodegate doctor`: whether this host is fit to gate, what each fault costs, and what mends it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser(
        "doctor",
        help="say whether this host is fit to gate, what each fault costs a measurement, and what mends it",
        description="Changes nothing; works without a GPU. Exit status: 0 fit (a WARN does not count), 1 with a FAIL.",
    )
    parser.add_argument("--python", default=sys.executable, help="the Python that the ranks would run under")
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), help="folder of stored baselines")
    parser.add_argument("--no-load", action="store_true", help="do not load the GPUs for two seconds")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="lines, or strict JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..fitness.check import Grade
    from ..fitness.table import run_checks
    from ..report.doctor import as_json, lines
    from .examination import Examination

    began = time.monotonic()
    seen = Examination(options.python, options.baselines, load=not options.no_load)
    readings = seen.readings()
    outcomes = run_checks(readings)
    forecast = seen.forecast()
    spent = time.monotonic() - began
    if options.format == "json":
        print(as_json(outcomes, forecast.lines, forecast.minutes, spent))
    else:
        print("\n".join(lines(outcomes, forecast.lines, forecast.minutes, spent)))

    return int(any(outcome.grade is Grade.FAIL for outcome in outcomes))
