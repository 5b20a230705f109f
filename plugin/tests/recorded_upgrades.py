"""Recorded answers of `decodegate upgrade` on H200s, read back as what a run says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from judged import result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.result import Failed, Result, Stacks
from pytest_decodegate.gate.run import Run
from pytest_decodegate.machine.provenance import Difference

RECORDED = Path(__file__).parent / "data" / "upgrades"

SAME = "h200_same_kernels"
"""A stack against itself."""

SLOWED = "h200_marlin_slower_by_2_percent"
"""The same stack with a spin in each burst of Marlin."""


def recorded(note: str) -> Finding:
    """A note of schema 1, which held the text alone; those of these runs all name kernels."""
    name, _, _ = note.removeprefix("a kernel appeared: ").removeprefix("a kernel is gone: ").rpartition(", ")
    return Finding(note, Cause.KERNEL_SWAP, name)


def of_schema_1(row: dict[str, Any]) -> Result:
    """A metric as it was written before findings had causes; none of these runs had an error."""
    assert not row["reasons"]
    numbers = ("base", "measured", "change", "lo", "hi", "confidence", "p_worse")
    known: dict[str, Any] = {name: row.get(name) for name in numbers}
    return result(
        row["name"],
        row["verdict"],
        kind=row["kind"],
        level=row["level"],
        tolerance=row["tolerance"],
        pairs=row["pairs"],
        notes=tuple(map(recorded, row["notes"])),
        advisory=row["advisory"],
        **known,
    )


def difference_of_schema_1(line: str) -> Difference:
    """A difference of the stacks, which was written as a line: "nccl: 2.28.3 -> 2.28.9"."""
    field, _, sides = line.rpartition(": ")
    base, _, new = sides.partition(" -> ")
    return Difference(field, base, new, declarable=True)


def recorded_run(name: str) -> Run:
    """The run of the file `name`."""
    written = json.loads((RECORDED / f"{name}.json").read_text())
    outcomes: list[Result | Failed] = [*map(of_schema_1, written["metrics"])]
    stacks = written["stacks"]
    contrast = Contrast(tuple(map(difference_of_schema_1, stacks["differences"])))
    compared = Stacks(stacks["base"], stacks["candidate"], stacks["machine_class"], contrast)
    return Run(outcomes, compared, unfinished=written["unfinished"], seconds=written["seconds"])
