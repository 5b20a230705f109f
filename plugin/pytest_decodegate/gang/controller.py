"""A gang: ranks started once by the real torchrun, and handed one piece of work after another."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Self

from ..errors import DecodegateError, GangError, RankRaised
from ..process import processes
from ..process.compile_caches import CompileCaches
from . import exit_reasons, logs, protocol, worker
from .agents import Agents
from .collection import Collection, OnNote
from .diagnosis import diagnose
from .exit_reasons import RankNames
from .logs import Marks
from .options import GangOptions as GangOptions
from .protocol import Bye, Hello
from .rank import Rank

HEALTH_SECONDS = 5.0


class Pending:
    """A call that runs on the ranks; its deadline counts from submit()."""

    def __init__(self, gang: Gang, collection: Collection) -> None:
        self._gang = gang
        self._collection = collection

    def result(self, on_note: OnNote | None = None) -> list[Any]:
        """Wait for every rank; return what each returned, by rank.

        Raises RankRaised, RankDied or RankHung, and pytest's skip if every rank skipped. on_note(rank, text) is
        called for each progress note.
        """
        return self._gang._result(self._collection, on_note)

    def wait(self, seconds: float, on_note: OnNote | None = None) -> bool:
        """Wait for at most `seconds`; whether result() would now return or raise at once."""
        return self._gang._collect(self._collection, on_note, seconds)


class Gang:
    """`world_size` ranks under one torchrun.

    name: for messages and for the log folder. After a failure that every rank reported the gang is checked and used
    again; after anything else it is closed, `cause` says why, and a new one must be made.
    """

    def __init__(self, world_size: int, options: GangOptions, *, name: str) -> None:
        options.ranks_per_node(world_size)  # refused here, not at the start
        self.world_size = world_size
        self.options = options
        self.name = name
        self.cause: DecodegateError | None = None
        self._ranks: dict[int, Rank] = {}
        self._log_dirs: dict[int, str] = {}
        self._hellos: dict[int, Hello] = {}
        self._agents: Agents | None = None
        self._caches: CompileCaches | None = None
        self._oom_kills = 0
        self._ready = False
        self._closed = False
        self._leaving_until: float | None = None
        self._doubt: str | None = None
        self._busy: Collection | None = None
        self._joining: Pending | None = None
        self._task = 0

    def __enter__(self) -> Self:
        self.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it can take a call: all ranks are up and stay, and torchrun runs."""
        if not self._in_service or self._agents is None or not self._agents.running:
            return False

        return not any(rank.ended for rank in self._ranks.values())

    @property
    def _in_service(self) -> bool:
        """Ready, and neither dismissed nor closed."""
        return self._ready and not self._closed and self._leaving_until is None

    @property
    def hellos(self) -> Mapping[int, Hello]:
        """The first frame of each rank: who and where it is; readable after the gang has ended."""
        return self._hellos

    @property
    def compile_caches(self) -> dict[str, dict[str, int | str | None]]:
        """Facts of process.compile_caches from before its start until now; {} before it."""
        return self._caches.facts() if self._caches else {}

    def spawn(self) -> None:
        """Start torchrun and return at once, so that several gangs can start together. Raises BadInput."""
        self._oom_kills = processes.oom_kills()
        self._caches = CompileCaches({**os.environ, **self.options.env})
        self._agents = Agents(self.world_size, self.options, self.name)

    def connect(self, on_wait: Callable[[str], None] | None = None) -> None:
        """Wait until every rank has connected, then let them join their process group and return at once.

        Several gangs so import torch together. on_wait is told once a second; errors as ready().
        """
        if self._agents is None:
            self.spawn()
        assert self._agents is not None
        with self._ended_by_errors():
            self._agents.admit_ranks(self._ranks, on_wait or (lambda _: None))
            self._hellos = {name: self._ranks[name].hello for name in sorted(self._ranks)}
            self._log_dirs = {name: hello.log_dir for name, hello in self._hellos.items()}
            self._ready = True
            seconds = max(1.0, self._agents.seconds_left)
            self._joining = self.submit(
                worker.init_process_group, self.options.collective_seconds, deadline_seconds=seconds
            )

    def ready(self, on_wait: Callable[[str], None] | None = None) -> None:
        """Wait until every rank has connected and joined the process group; on_wait is told once a second.

        Raises a GangError that quotes torchrun and the ranks, after which the gang is closed.
        """
        if self._joining is None:
            self.connect(on_wait)
        assert self._joining is not None
        with self._ended_by_errors():
            self._joining.result()

    def submit(
        self, function: Callable[..., Any], *args: Any, deadline_seconds: float | None = None, **kwargs: Any
    ) -> Pending:
        """Send function(*args, **kwargs) to every rank and return once all have it, or the deadline has passed.

        Raises BadInput, before any rank is disturbed, if the function or an argument cannot travel; GangError if the
        gang has ended.
        """
        task = self._task = self._task + 1
        frame = protocol.call(task, function, args, kwargs)
        self._settle()
        seconds = self.options.deadline_seconds if deadline_seconds is None else deadline_seconds
        collection = Collection(task, f"{function.__name__}()", self._ranks, self.options, seconds)
        self._busy = collection
        with self._ended_by_errors():
            collection.deliver(frame)

        return Pending(self, collection)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_seconds: float | None = None,
        on_note: OnNote | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Do submit() and result() in one."""
        return self.submit(function, *args, deadline_seconds=deadline_seconds, **kwargs).result(on_note)

    def check(self) -> bool:
        """Whether the gang can be used; after a failure the ranks must first pass a health check (5 s)."""
        try:
            self._settle()
        except GangError:
            return False

        return self.alive

    def _settle(self) -> None:
        """Leave no call unanswered and no doubt about the ranks; raises GangError if they cannot be used."""
        if self._busy is not None:  # its caller gave it up, for instance because another gang had failed
            self._collect(self._busy, None)
        if not self._in_service:
            hint = f"because {self.cause}" if self.cause else "it was dismissed or closed, or ready() was not called"
            raise GangError(f"gang {self.name!r} cannot take work: {hint}")
        if self._doubt is not None:
            doubt, self._doubt = self._doubt, None
            self._check_health(doubt)

    def _check_health(self, doubt: str) -> None:
        try:
            self.run(worker.check_health, self._task, deadline_seconds=HEALTH_SECONDS)
        except GangError as error:
            # What broke the gang is not the check.
            explained = type(error)(exit_reasons.after(str(error), doubt), cause=error.cause, about=error.about)
            self._fail(explained)
            self.cause = explained
            raise explained from None

    def _result(self, collection: Collection, on_note: OnNote | None) -> list[Any]:
        self._collect(collection, on_note)
        if collection.failures or len(collection.replies) < self.world_size:
            self._raise(collection)

        replies = [collection.replies[name] for name in range(self.world_size)]
        skips = {name: reply.skip for name, reply in enumerate(replies) if reply.skip is not None}
        if skips:
            self._doubt = f"{exit_reasons.ranks_text(list(skips))} skipped {collection.what}"
            self._raise_skip(collection.what, skips)

        return [self._value(name, reply.value) for name, reply in enumerate(replies)]

    def _collect(self, collection: Collection, on_note: OnNote | None, seconds: float = math.inf) -> bool:
        """Collect for at most `seconds`; whether everything is known that ever will be."""
        if collection is not self._busy:
            return True
        with self._ended_by_errors():
            if not collection.collect(on_note, seconds):
                return False

        self._busy = None
        if collection.failures:
            self._doubt = exit_reasons.earliest(collection.failures)
        if collection.gone or collection.silent:
            self._fail(self._diagnose(collection))

        return True

    def _diagnose(self, collection: Collection) -> GangError:
        assert self._agents is not None
        grace_seconds = self.options.grace_seconds
        return diagnose(collection, self._ranks, self._agents, self._rank_names, grace_seconds, self._oom_kills)

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Whatever is raised, also by Ctrl-C or pytest-timeout, finds the ranks in the middle of something."""
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    @property
    def _rank_names(self) -> RankNames:
        return RankNames(self.name, self._hellos)

    def _raise(self, collection: Collection) -> NoReturn:
        if collection.gone or collection.silent:
            raise self.cause or GangError(f"gang {self.name!r} was closed before it answered {collection.what}")

        raise exit_reasons.rank_raised(collection.what, collection.failures, self._rank_names)

    def _raise_skip(self, what: str, skips: Mapping[int, str]) -> NoReturn:
        others = sorted(set(range(self.world_size)) - set(skips))
        if others:
            raise RankRaised(exit_reasons.disagreed(what, skips, others, self._rank_names))

        import pytest

        pytest.skip(skips[0])

    def _value(self, name: int, value: bytes | None) -> Any:
        assert value is not None
        try:
            return protocol.load(value)
        except Exception as error:
            raise RankRaised(
                f"{self._rank_names.rank(name)} returned a value that cannot be unpickled here ("
                f"{type(error).__name__}: {error}); return numbers, strings and lists"
            ) from error

    def _fail(self, error: BaseException) -> None:
        """Close the gang for good, without asking the ranks."""
        self.kill(error)
        self._end()

    def marks(self) -> Marks:
        """Marks at the end of every rank's output now; works after the gang has ended, too."""
        return logs.marks(self._log_dirs)

    def output_since(self, marks: Marks) -> list[tuple[int, str, str]]:
        """(rank, "stdout" or "stderr", text) written after `marks`, at most 20 kB each; {} means from the start."""
        return logs.output_since(self._log_dirs, marks)

    def give_up(self, error: BaseException) -> None:
        """Nobody will ask for the answer to the call under way, because of `error`.

        The ranks have the grace, from now, to end it; the gang is closed at its next use if they do not.
        """
        if self._busy is not None:
            self._busy.give_up(exit_reasons.in_brief(error))

    def kill(self, error: BaseException) -> None:
        """Kill the ranks without asking them, because of `error`, and return at once; close() waits for their end.

        So several gangs end together: each torchrun takes half a second to notice.
        """
        if self._closed:
            return
        if isinstance(error, DecodegateError):
            self.cause = error
        else:
            self.cause = GangError(f"it was interrupted by {type(error).__name__}")

        self._kill()

    def close(self) -> None:
        """Let the ranks drop their state and leave, then end whatever is left; bounded, and safe to call again."""
        self.dismiss()
        try:
            if self._leaving_until is not None and not self._closed:
                for rank in self._ranks.values():
                    rank.await_end(max(0.0, self._leaving_until - time.monotonic()))
        finally:  # also if Ctrl-C ends the wait
            self._end()

    def dismiss(self) -> None:
        """Tell the ranks to drop their state and leave, and return at once; close() waits for their end.

        So several gangs leave together: a rank takes seconds to tear down NCCL and CUDA. Ranks that cannot leave
        together, because they are busy or one of them is gone, are not waited for: close() kills them.
        """
        if not self._in_service or self._busy is not None:
            return

        seconds = self.options.teardown_seconds
        for rank in self._ranks.values():
            try:
                rank.connection.send(protocol.dump(Bye(seconds)))
            except OSError:
                return

        self._leaving_until = time.monotonic() + seconds + 1

    def _kill(self) -> None:
        if self._closed:  # a pid that was killed before may be somebody else's by now
            return

        self._closed = True
        self._busy = None
        for rank in self._ranks.values():
            rank.kill()
        if self._agents is not None:
            self._agents.terminate()

    def _end(self) -> None:
        self._kill()
        if self._agents is not None:
            self._agents.stop()
        for rank in self._ranks.values():
            rank.close()
