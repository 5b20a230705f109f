"""Whether a run may start on this host: the early checks of doctor, asked before anything is started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..fitness.reading import read_early
from ..fitness.table import CHECKS, early_failures
from ..process.processes import family

if TYPE_CHECKING:
    from ..fitness.check import CheckOutcome
    from ..resources.hardware import Hardware
    from ..settings.settings import Settings

ALL = "all"
"""The value of --perf-despite that stands for every check."""


def check_host(settings: Settings, hardware: Hardware) -> list[str]:
    """What speaks against measuring here and is gone on with by --perf-despite, a line each; what else is BadInput."""
    check_names(settings.despite)
    readings = read_early(
        hardware.fingerprint, hardware.sensor, settings.baselines, family(), attached=settings.attached
    )
    failures = list(early_failures(readings))
    refused = [each for each in failures if not settings.despite & {ALL, each.check.name}]
    if refused:
        raise BadInput(_refusal(refused))

    return [f"despite {failure.check.name}: {failure.text}: {failure.check.cost}" for failure in failures]


def check_names(names: Iterable[str]) -> None:
    """Raise BadInput for a name in --perf-despite that is no early check's."""
    known = [check.name for check in CHECKS if check.early]
    for name in names:
        if name not in (ALL, *known):
            raise BadInput(
                f"--perf-despite: {name!r} is no check that ends a run; those are {', '.join(known)}, or {ALL}"
            )


def _refusal(failures: Iterable[CheckOutcome]) -> str:
    lines = ["this host is not fit to gate, and nothing was started:"]
    for failure in failures:
        lines += [
            f"  FAIL {failure.check.name}: {failure.text}",
            f"       costs: {failure.check.cost}",
            f"       mend:  {failure.mend}",
        ]

    names = ",".join(failure.check.name for failure in failures)
    return "\n".join([*lines, f"see `decodegate doctor`; to measure all the same: --perf-despite={names}"])
