"""The process of a rank: started by torchrun, runs what the controller sends until it says goodbye or hangs up.

Imports only the standard library: the rank may run under another Python than pytest, and torch is loaded by the first
call that needs it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final

from ..cause import cause_of
from ..errors import DecodegateError
from ..process.guard import PR_SET_PDEATHSIG, prctl
from . import connection, protocol
from .connection import Connection
from .protocol import Bye, Call, Failure, Hello, Note, Reply

STACKS = "stacks.log"
"""Beside a rank's stdout.log: where SIGUSR1 writes the stacks of all threads."""

LOST_CONTROLLER = 86
"""Exit code of a rank whose connection to the controller is gone."""

CONNECT_SECONDS = 30.0
RETRY_SECONDS = 0.2

SKIPS = frozenset({"_pytest.outcomes.Skipped", "unittest.case.SkipTest"})

state: Final[dict[str, Any]] = {}
"""What workloads keep between calls (buffers, CUDA graphs); dropped before the process group is destroyed."""


class _Channel:
    """The rank's end of the control connection; notes may come from any thread of the workload."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.task = 0

    def receive(self) -> Any:
        frame = self._connection.pull()
        assert frame is not None  # it blocks
        return protocol.load(frame)

    def send(self, frame: bytes) -> None:
        with self._lock:
            self._connection.send(frame)


_channel: _Channel | None = None


def note(text: str) -> None:
    """Tell the controller how far this rank is; shown with -v, and quoted if the rank hangs. Silent outside a gang."""
    if _channel is not None:
        _channel.send(protocol.dump(Note(_channel.task, text)))


def init_process_group(timeout_seconds: float) -> None:
    """Join torch's default process group: gloo, and NCCL for CUDA tensors where this rank has a GPU."""
    import torch
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_seconds)
    if torch.cuda.is_available():
        device = torch.device("cuda", _local_device(torch.cuda.device_count()))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=timeout)

    # It would make every tcp:// store of a child of this rank a client of torchrun's (pytorch#191989).
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)


def _local_device(count: int) -> int:
    local_rank = int(os.environ["LOCAL_RANK"])
    if local_rank >= count:
        raise RuntimeError(
            f"local rank {local_rank} has no GPU: this host shows {count} (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}); use a smaller world size"
        )

    return local_rank


def check_health(token: int) -> None:
    """Synchronise the device and meet the other ranks; raises if they are not in step or a device error sticks."""
    import torch
    import torch.distributed as dist

    devices = ["cpu"]
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        devices.append("cuda")

    for device in devices:
        tokens = torch.full((1,), token, dtype=torch.int64, device=device)
        dist.all_reduce(tokens)
        if (total := int(tokens.item())) != token * dist.get_world_size():
            raise RuntimeError(f"ranks are out of step: sum of {token} over {dist.get_world_size()} ranks is {total}")


def reset() -> None:
    """Drop what workloads keep between calls, CUDA graphs first of all: they hold the communicator they captured."""
    state.clear()
    gc.collect()


def _leave(seconds: float) -> None:
    # A timer in C: it also ends a rank whose destroy_process_group never returns with the GIL held.
    faulthandler.dump_traceback_later(seconds, exit=True)
    reset()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()


def _run(call: Call) -> Reply:
    try:
        function = _resolve(call)
        args, kwargs = protocol.load(call.arguments)
        value = function(*args, **kwargs)
    except BaseException as error:  # SystemExit and pytest's outcomes travel like any other
        if f"{type(error).__module__}.{type(error).__name__}" in SKIPS:
            return Reply(call.task, skip=str(error))

        return Reply(call.task, failure=_describe(error))

    return _packed(call.task, value)


def _resolve(call: Call) -> Callable[..., Any]:
    try:
        return call.function.resolve()
    except Exception as error:
        where = call.function.file or call.function.module
        error.add_note(f"raised while {sys.executable} looked for {call.function.qualname}() in {where}")
        raise


def _packed(task: int, value: object) -> Reply:
    try:
        return Reply(task, value=protocol.dump(value))
    except Exception as error:  # the value is at fault, whatever its __reduce__ raises
        error.add_note(f"raised while pickling the value that this rank returned, a {type(value).__qualname__}")
        return Reply(task, failure=_describe(error))


def _describe(error: BaseException) -> Failure:
    try:
        message = "; ".join([str(error), *getattr(error, "__notes__", ())])
    except Exception as broken:  # a user's __str__
        message = f"<its __str__ raised {type(broken).__name__}>"

    # The first frame is this file's.
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    # What decodegate itself refuses is a sentence for the user; where in our code it was said helps nobody.
    text = "" if isinstance(error, DecodegateError) else "".join(traceback.format_exception(type(error), error, frames))
    cause = error.cause if isinstance(error, DecodegateError) else cause_of(error, message)
    return Failure(type(error).__qualname__, message, text, time.time(), cause)


def _serve(channel: _Channel) -> None:
    while not isinstance(message := channel.receive(), Bye):
        channel.task = message.task
        reply = _run(message)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a workload may have closed it
                stream.flush()

        channel.send(protocol.dump(reply))

    _leave(message.seconds)


def _watch(fd: int, stacks: IO[bytes]) -> None:
    """Leave at once when the controller hangs up, whatever the main thread does; write stacks on urgent data, which is
    how a controller on another host asks for them. Other data does not wake this thread.
    """
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP | select.POLLPRI)
    while not poll.poll()[0][1] & ~select.POLLPRI:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
            duplicate.recv(1, socket.MSG_OOB)

        faulthandler.dump_traceback(stacks, all_threads=True)

    os._exit(LOST_CONTROLLER)


def _connect() -> Connection:
    key = Path(os.environ[protocol.KEY_FILE]).read_bytes()
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        controller = _open(os.environ[protocol.ADDRESS])
        try:
            return Connection(controller, connection.answer(controller, key, deadline), blocking=True)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            # Among very many strangers a slow handshake is the first to be dropped.
            controller.close()
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise

        time.sleep(RETRY_SECONDS)


def _open(address: str) -> socket.socket:
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)))

    controller = socket.socket(socket.AF_UNIX)
    controller.connect(address)
    return controller


def _hello() -> Hello:
    return Hello(
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        pid=os.getpid(),
        host=socket.gethostname(),
        log_dir=str(Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent),
        python=sys.executable,
        system=protocol.this_system(),
    )


def main() -> None:
    """Join the gang and serve it."""
    global _channel
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # of torchrun's main thread, which starts the ranks
    hello = _hello()
    faulthandler.enable()
    stacks = Path(hello.log_dir, STACKS).open("wb")  # noqa: SIM115 - open for life: a signal handler writes to it
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    controller = _connect()
    threading.Thread(target=_watch, args=[controller.fileno(), stacks], daemon=True, name="decodegate watch").start()
    _channel = _Channel(controller)
    _channel.send(protocol.dump(hello))
    try:
        _serve(_channel)
    except (EOFError, OSError) as error:
        print(f"rank {hello.rank}: the connection to pytest is gone: {error!r}", file=sys.stderr)  # noqa: T201
        sys.exit(LOST_CONTROLLER)


if __name__ == "__main__":
    # Run as the module that workloads import: note() and `state` must be the same objects there.
    from . import worker

    worker.main()
