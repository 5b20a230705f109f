"""SIGTERM and SIGHUP as interrupts: what was measured is kept and shown, what was started is ended, as after Ctrl-C.

A run that was started in the background (`nohup ... &`, many CI runners) ignores SIGINT: Ctrl-C and `kill -INT` do
nothing there, and SIGTERM is the way to stop it. SIGHUP comes when its terminal or its ssh goes away.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> Callable[[], None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread from now on; returns what takes that back.

    A handler that somebody else has set stays, and so does a signal that is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def take_back() -> None:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)

    for number in ours:
        signal.signal(number, interrupt)

    return take_back
