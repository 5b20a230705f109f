"""What every load generator's result of a server comes to: TPOT, TTFT and throughput, and what decided them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from ..baseline.schema import Session
from ..metric import Json, Metric, Replicate
from .found import Fields

CLOCK: Final = "client, at the chunk"

_MEDIAN_SLACK: Final = 1e-3
"""Figures are written with all digits; some tools round them to hundredths of a millisecond."""

_SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class ServingResult:
    """One run of a load generator.

    load: names what was sent, "c=8" or "rate=2". formula: id of the TPOT formula, which differs from tool to tool.
    values: of "tpot", "ttft" (seconds) and "output_throughput" (tokens per second): one figure, or one of each request
    if it is `detailed`. recorded: ISO 8601 with offset, "" if the file does not say it.
    """

    load: str
    formula: str
    contract: Mapping[str, Json]
    values: Mapping[str, Sequence[float]]
    recorded: str = ""
    detailed: bool = False

    def sessions(self, session_id: str) -> Iterator[tuple[Metric, Session]]:
        """One session of each metric."""
        for name, values in self.values.items():
            unit = "tok/s" if name == "output_throughput" else "s"
            formula: Mapping[str, Json] = {} if unit == "tok/s" else {"formula": self.formula}
            metric = Metric.of(f"{name}[{self.load}]", "serving", unit=unit)
            yield replace(metric, contract={**self.contract, **formula}), self._session(session_id, tuple(values))

    def _session(self, session_id: str, values: tuple[float, ...]) -> Session:
        if not self.detailed:
            return Session(session_id, self.recorded, "published", (), point=values[0])

        facts: Mapping[str, Json] = {"requests": len(values)}
        return Session(session_id, self.recorded, "window", (Replicate(values, facts),))


def load_of(concurrency: Json, rate: Json) -> str:
    """The part of a metric's name that says what was sent: a concurrency, or a rate."""
    return f"rate={rate}" if concurrency is None else f"c={concurrency}"


def rate_of(fields: Fields, name: str) -> Json:
    """Requests a second; "inf" where all are sent at once, which some write as a number that JSON has not."""
    value = fields.values.get(name)
    return "inf" if value == math.inf else fields.plain(name)


def tokens_of_a_request(total: float, requests: float) -> float:
    """Mean tokens of a request. Where answers end as they like, two runs of one load agree to two digits only."""
    mean = total / requests
    rounded = mean if mean == round(mean) else float(f"{mean:.2g}")
    return round(rounded) if rounded == round(rounded) else rounded


def check_lists(fields: Fields, names: Sequence[str], requests: float) -> None:
    """Refuse a file whose lists were cut: each must have as many elements as there were requests."""
    for name in names:
        values = fields.values.get(name)
        if isinstance(values, list) and values and len(values) != requests:
            raise fields.wrong_length(name, f"{requests:g} requests were completed, so the list was cut")


def check_sum(fields: Fields, name: str, total: str) -> None:
    """Refuse a file whose list of tokens does not add up to its own total."""
    if isinstance(fields.values.get(name), list) and (found := sum(fields.numbers(name))) != fields.number(total):
        raise fields.wrong(total, f"the {len(fields.values[name])} values of {name!r} add up to {found:g}")


def check_median(fields: Fields, name: str, seconds: Sequence[float], *, slack: float = _MEDIAN_SLACK) -> None:
    """Refuse a file whose own median, in milliseconds, is not that of its requests."""
    if fields.values.get(name) is not None and not math.isclose(
        found := 1e3 * median(seconds), fields.number(name), rel_tol=slack
    ):
        raise fields.wrong(name, f"the requests in this file have a median of {found:.6g}")


def seconds_of(statistic: Fields, name: str) -> float:
    """A time with its own field "unit", in seconds."""
    unit = statistic.text("unit")
    if unit not in _SECONDS:
        raise statistic.wrong("unit", f"a unit of time is needed: {', '.join(_SECONDS)}")

    return statistic.number(name) * _SECONDS[unit]
