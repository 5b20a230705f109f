"""Between a perf run and the stored baselines: which one gates, and what is recorded where."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..baseline.history import series
from ..baseline.reader import load
from ..baseline.selection import Selection, contrast
from ..baseline.store import Store, one_session
from ..errors import BadInput
from ..gate.bands import LOOKS, hides_in_wider_band, recorded_band
from ..gate.verdict import Judgement, Verdict
from ..machine.classes import machine_class
from ..machine.provenance import Difference, Provenance
from ..machine.stack import stack_label
from ..report.benchmark import share
from .protocol import RecordedIn

if TYPE_CHECKING:
    import pytest

    from ..baseline.schema import Baseline
    from ..machine.fingerprint import Fingerprint
    from ..metric import Measurement, Metric
    from ..settings.settings import Settings


class Recorder:
    """The stored baselines in one session of recording or gating, each of the class of what its metric runs on.

    host: the whole machine, parts of which metrics run on. tell: shows a line to the user. store: where they lie.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        host: Fingerprint,
        session_id: str,
        tell: Callable[[str], None],
    ) -> None:
        self._config = config
        self._settings = settings
        self._host = host
        self._session_id = session_id
        self._tell = tell
        self.store = Store(settings.baselines)

    def check(self) -> None:
        """Raise BadInput for files or a folder that cannot be used: before minutes of measuring, not after."""
        self.stored()
        if self._settings.record != "off":
            self._check_folder()

    def _check_folder(self) -> None:
        for folder in map(self.store.folder, self.classes):
            there = next(path for path in (folder, *folder.parents) if path.exists())
            if not os.access(there, os.W_OK) or not there.is_dir():
                raise BadInput(
                    f"{folder}: cannot be recorded into, because {there} is not a folder that can be written"
                )

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Machine classes of everything here that a metric may run on."""
        return tuple(part.machine_class for part in self._host.parts)

    @property
    def records(self) -> bool:
        """Whether metrics without a baseline are recorded."""
        return self._settings.record != "off"

    @cached_property
    def _named(self) -> Baseline | None:
        """The file that the user names, read once: a run is compared with one state of it, whatever becomes of it."""
        return load(self._settings.baseline) if self._settings.baseline else None

    def stored(self) -> list[Baseline]:
        """What may be compared with: the file that the user names, else all of these classes."""
        if self._named is not None:
            return [self._named]

        return [baseline for each in self.classes for baseline in self.store.candidates(each)]

    def levels(self, metrics: Sequence[Metric]) -> list[list[float]]:
        """The stored levels of each of `metrics` as it is measured now, in its unit, oldest first."""
        stored = self.stored() if metrics else []
        return [
            [
                point.value
                for each in series(stored, metric.name)
                if each.metric.identity == metric.identity
                for point in each.points
            ]
            for metric in metrics
        ]

    def select(self, metric: str, provenance: Provenance) -> Selection:
        """The stored baseline that `metric` is gated against, where it runs on the machine of `provenance`."""
        declared = self._settings.change
        own_class = machine_class(provenance.machine)
        if self._named is None:
            return self.store.select(own_class, provenance, declared, metric)

        found = contrast(self._named, provenance, declared, metric)
        another: tuple[Difference, ...] = ()
        if self._named.machine_class != own_class:
            another = (Difference("machine_class", self._named.machine_class, own_class, declarable=False),)

        return replace(
            found,
            differences=(*another, *found.differences),
            undeclared=(*another, *found.undeclared),
            choice=("named by --perf-baseline", *found.choice),
        )

    def keep(self, judgement: Judgement, measurement: Measurement, provenance: Provenance) -> RecordedIn | None:
        """Record what was asked for, and share it with pytest-benchmark; never what is wrong or was measured badly.

        Returns where it was recorded, None if it was not. A published figure is somebody's point value: measured here,
        such a metric has no baseline yet. With 'gated' nothing that REGRESSED or is CONFOUNDED is stored, nor what only
        a wider band lets pass: it would be its own baseline when the same is run again. What cannot keep the band of
        its test is stored under one that it can.
        """
        if judgement.verdict in (Verdict.WRONG_RESULT, Verdict.INVALID):
            return None

        self._share(measurement, provenance)
        missing = judgement.verdict is Verdict.NO_BASELINE or judgement.basis.unpublished is not None
        gated = self._settings.record == "gated" and not missing
        if gated and (judgement.verdict in (Verdict.REGRESSED, Verdict.CONFOUNDED) or hides_in_wider_band(judgement)):
            return None
        if self._settings.record in ("gated", "all") or (self._settings.record == "missing" and missing):
            return self._record(measurement, provenance, gated=gated)

        return None

    def _record(self, measurement: Measurement, provenance: Provenance, *, gated: bool) -> RecordedIn:
        own_class = machine_class(provenance.machine)
        stored, others = self.store.beside(provenance, own_class, measurement, self._session_id)
        band = recorded_band(stored, others, self._settings.max_replicates, LOOKS)
        kept = replace(measurement, metric=replace(measurement.metric, tolerance=band.kept))
        label = stack_label(provenance.stack)
        return RecordedIn(self.store.record(provenance, own_class, label, kept, self._session_id), band, gated)

    def _share(self, measurement: Measurement, provenance: Provenance) -> None:
        """Show it in pytest-benchmark's own table and files, if the user asked for these."""
        if problem := share(self._config, one_session(measurement, provenance, self._session_id)):
            self._tell(problem)
