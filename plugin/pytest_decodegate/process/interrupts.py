"""SIGTERM as an interrupt: what was measured is kept and shown, and what was started is ended, as after Ctrl-C.

A run that was started in the background (`nohup ... &`, many CI runners) ignores SIGINT: Ctrl-C and `kill -INT` do
nothing there, and SIGTERM is the way to stop it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def interrupt_on_sigterm() -> Callable[[], None]:
    """Let SIGTERM raise KeyboardInterrupt in the main thread from now on; returns what takes that back.

    A handler that somebody else has set stays, and so does an ignored SIGTERM.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return lambda: None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("SIGTERM")

    def take_back() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, interrupt)
    return take_back
