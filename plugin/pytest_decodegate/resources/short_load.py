"""Loads all GPUs at once for two seconds, each by a process as ranks are, and looks at them meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import BadInput
from ..fitness.readings import CardLoad
from ..gang.agents import import_folder
from ..machine.watch import COUNT_SECONDS, GpuTally
from ..process import private_folders
from ..process.import_path import import_variables
from ..process.processes import scrubbed

if TYPE_CHECKING:
    from ..machine.nvml import CountingSensor

SECONDS: Final = 120.0
"""For torch to be imported and the load to end; then it is given up."""

LOOK_SECONDS: Final = 0.1

CODE: Final = "from pytest_decodegate.workloads.runtime.short_load import main; main()"


class CardLoader:
    """A process that loads one card, which it alone sees; its standard error goes to `errors`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], uuid: str, errors: Path) -> None:
        self._uuid = uuid
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                command,
                env={**environment, "CUDA_VISIBLE_DEVICES": uuid},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                errors="replace",
            )

    def wait_until_ready(self) -> None:
        """Wait for its word that the card is warm; raises BadInput if it ends before."""
        if self._line() != "ready":
            raise self._failed("was not loaded")

    def begin(self) -> None:
        """Let it load the card."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # that it ended is said when its rates are wanted
            self._process.stdin.write("go\n")
            self._process.stdin.close()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def load(self, tally: GpuTally) -> CardLoad:
        """What it reached, beside what was seen of the card; raises BadInput if it came to no end."""
        try:
            rates = json.loads(self._line())
            return CardLoad(
                tuple(tally.busy), tally.limited_seconds(), float(rates["copy_bytes_s"]), float(rates["host_bytes_s"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed("came to no end of its load") from error

    def kill(self) -> None:
        """End it; nothing happens if it has ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()

    def stop(self) -> None:
        """End it from another thread, so that whoever reads from it gets an answer."""
        self._process.kill()

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def _failed(self, what: str) -> BadInput:
        self.stop()
        words = self._errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        return BadInput(f"GPU {self._uuid} {what} ({words[-1]})")


def load_cards(
    python: str,
    uuids: Sequence[str],
    sensor: CountingSensor,
    import_path: Sequence[str],
    *,
    code: str = CODE,
    seconds: float = SECONDS,
) -> dict[str, CardLoad]:
    """What each card of `uuids` showed under its load.

    code: what each process runs, as workloads.runtime.short_load. Raises BadInput, with the last line that a process
    wrote, where one cannot load its card or does not end within `seconds`.
    """
    tallies = {uuid: GpuTally(uuid) for uuid in uuids}
    with _loaders([python, "-c", code], uuids, import_path, seconds) as loaders:
        for loader in loaders.values():
            loader.wait_until_ready()
        for uuid, tally in tallies.items():
            tally.before = sensor.counters(uuid)
        for loader in loaders.values():
            loader.begin()
        _look(tallies, sensor, loaders)
        return {uuid: loader.load(tallies[uuid]) for uuid, loader in loaders.items()}


def _look(tallies: dict[str, GpuTally], sensor: CountingSensor, loaders: dict[str, CardLoader]) -> None:
    while all(loader.is_alive for loader in loaders.values()):
        for uuid, tally in tallies.items():
            tally.samples.append(sensor.sample(uuid))

        time.sleep(LOOK_SECONDS)

    time.sleep(COUNT_SECONDS)
    for uuid, tally in tallies.items():
        tally.after = sensor.counters(uuid)


def _stop(loaders: dict[str, CardLoader]) -> None:
    for loader in loaders.values():
        loader.stop()


@contextmanager
def _loaders(
    command: Sequence[str], uuids: Sequence[str], import_path: Sequence[str], seconds: float
) -> Iterator[dict[str, CardLoader]]:
    """One for each card; none is left behind, and none outlives `seconds`."""
    folder = private_folders.make("decodegate-", tempfile.gettempdir())
    started: dict[str, CardLoader] = {}
    watchdog = threading.Timer(seconds, _stop, (started,))
    try:
        imports = import_variables(command[0], import_path, [import_folder(folder)])
        environment = {**scrubbed(os.environ), **imports}
        for uuid in uuids:
            started[uuid] = CardLoader(command, environment, uuid, folder / f"{uuid}.err")

        watchdog.start()
        yield started
    except OSError as error:
        raise BadInput(f"{command[0]} cannot be run ({error.strerror})") from error
    finally:
        watchdog.cancel()
        for loader in started.values():
            loader.kill()

        private_folders.remove(folder)
