"""What is behind a finding or an error, as a value: decisions read causes, and words are made last.

A cause is given where it is known: by whoever watches, measures or starts. What other programs say, in exceptions and
logs, is classified here, once, by the wordings that these programs use; text of our own is never read again.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self


class Cause(StrEnum):
    """Why something failed, cannot be judged, or may have changed."""

    # Of errors.
    OUT_OF_MEMORY = "out of memory"
    DEVICE = "device error"
    CRASH = "crash"
    HANG = "hang"
    EXCEPTION = "exception"
    SERVER = "server"
    BAD_INPUT = "bad input"
    # Of measurements that broke a rule.
    THROTTLING = "throttling"
    STRANGER = "stranger on the GPU"
    BUSY_CORES = "cores in use by others"
    UNWATCHED = "GPU not watched"
    SICK_GPU = "sick GPU"
    BROKEN_CLOCK = "broken clock"
    TOO_FAST = "faster than memory allows"
    NOT_COLD = "the cache served what memory should"
    DRIFT = "drift"
    LATE_HOST = "host late with its launches"
    MIXED_CLOCKS = "samples at several clocks"
    TOO_FEW = "too few replicates"
    UNSTEADY = "replicates differ in what ran"
    WINDOW = "broken window"
    UNUSED_CHANGE = "change not in use"
    WRONG_BASE = "wrong numbers on the base"
    # Of comparisons that cannot be made.
    DIFFERENCE = "undeclared difference"
    UNCAUSED = "swap without a change"
    CLOCK_SHIFT = "clocks differ"
    NO_BASELINE = "no baseline"
    # Of comparisons that stay open.
    PROCESS_APART = "process apart"
    # Of results.
    WRONG_NUMBERS = "wrong numbers"
    WRONG_ANSWERS = "wrong answers"
    # Of changes in time.
    KERNEL_SWAP = "kernel swap"
    STRAGGLER = "straggler"
    ACCEPTANCE = "acceptance length"
    # Of nothing: how it was measured, and what to think of when reading it.
    REMARK = "remark"

    @property
    def explains_times(self) -> bool:
        """Whether it may be why a metric is slower or faster."""
        return self in (Cause.KERNEL_SWAP, Cause.STRAGGLER, Cause.ACCEPTANCE, Cause.PROCESS_APART)


class Finding(str):
    """A sentence for people with its cause: like markupsafe's Markup a str, which shows and compares as its text.

    about: what tells it from other findings of that cause: the field, GPU or exception that it is about. Findings of
    one cause about one thing are one finding, whatever numbers their sentences hold. brief: the text in one line.
    """

    cause: Cause
    about: str
    brief: str

    def __new__(cls, text: object, cause: Cause = Cause.REMARK, about: str = "", brief: str = "") -> Self:
        """A finding that says `text`; `brief` is needed only for a text of several lines."""
        found = super().__new__(cls, text)
        found.cause, found.about, found.brief = cause, about, brief or str(text)
        return found

    @property
    def fields(self) -> dict[str, str]:
        """For JSON: "cause", "about", "text", and "brief" where the text has several lines."""
        known = {"cause": str(self.cause), "about": self.about, "text": str(self)}
        return known if self.brief == self else {**known, "brief": self.brief}

    @property
    def key(self) -> tuple[Cause, str]:
        """Equal for findings that are one."""
        return self.cause, self.about

    def of(self, whom: str, *, apart: bool = False) -> Finding:
        """The same, said of `whom`: "replicate 3: ...". apart: the same of somebody else is another finding."""
        about = f"{whom}: {self.about}" if apart else self.about
        return Finding(f"{whom}: {self}", self.cause, about, f"{whom}: {self.brief}")


MOST_CHARACTERS: Final = 300
"""Of an exception in one line: a compiler's command line has thousands."""

_WORDINGS: Final[Mapping[Cause, re.Pattern[str]]] = {
    # Of CUDA, NCCL, torch, vLLM, glibc and the kernel.
    Cause.OUT_OF_MEMORY: re.compile(r"out[ _]of[ _]memory|OutOfMemory|cannot allocate memory|bad_alloc", re.I),
    # What CUDA, NCCL and the driver say when the device, and not the program, may be at fault.
    Cause.DEVICE: re.compile(r"cuda ?(driver )?error|uncorrectable|nccl.{0,200}error|launch failure|\bXid\b", re.I),
}
_EXCEPTION: Final = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): .+)")
_LOGGED_ERROR: Final = re.compile(r"\bERROR\b")
_REFERS: Final = re.compile(r"\b(above|previous logs?)\b", re.I)
_NUMBER: Final = re.compile(r"[0-9.]+")


def cause_of_text(foreign: str) -> Cause | None:
    """The cause that another program's message or log tells of, the first of the table; None if it tells of none."""
    return next((cause for cause, wording in _WORDINGS.items() if wording.search(foreign)), None)


def cause_of(error: BaseException, message: str) -> Cause:
    """The cause of an exception of torch, vLLM, NCCL or Python: by its type, else by its message.

    message: what it says; it is not asked here, because a user's __str__ may raise.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"} or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return Cause.OUT_OF_MEMORY

    return cause_of_text(f"{type(error).__name__}: {message}") or Cause.EXCEPTION


def last_exception(log: str) -> str:
    """The last Python exception of another program's log, in one line; "" if there is none."""
    found = [match[1] for line in log.splitlines() if (match := _EXCEPTION.search(line.strip()))]
    return found[-1][:MOST_CHARACTERS] if found else ""


def first_error(log: str) -> str:
    """The first exception that another program logged as an error, in one line; "" if there is none.

    What stops a server of several processes is said first by the one it happened in; the last to end says "see above".
    """
    return next(
        (found for line in log.splitlines() if _LOGGED_ERROR.search(line) and (found := last_exception(line))), ""
    )


def root_exception(log: str) -> str:
    """The last exception of a log, or the first that was logged as an error where the last one only refers to it."""
    last = last_exception(log)
    return first_error(log) or last if not last or _REFERS.search(last) else last


def without_numbers(foreign: str) -> str:
    """Another program's message with each number as 0: sizes and addresses do not make it another failure."""
    return _NUMBER.sub("0", foreign)
