"""The server under test: one of ours, started under guard, or somebody's, attached by URL."""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ..client.client import HttpReply
from ..client.endpoint import Endpoint, base_url, model_length, served_models
from ..errors import BadInput, ServerError
from ..metric import Json
from ..printable import printable
from ..process.compile_caches import CompileCaches
from .log_facts import headline, read_facts, start_times
from .models import LocalModel
from .pages import fetch, page, read_pages
from .process import ServerProcess
from .said import settings_said

OnWait = Callable[[str], None]

API_KEY = "VLLM_API_KEY"
"""Where vLLM looks for the key that its clients must send, unless a file of flags holds one."""

_HOST = "127.0.0.1"
_CONFIG = "--config"
POLL_SECONDS = 0.5
_DEATH_SECONDS = 5.0  # vLLM's front end outlives its engine by a few seconds
LEAST_ORDINARY = 1000
"""Below are bytes and control tokens; a vocabulary of twice as many is large enough to leave them out."""

ATTACHED_TOKEN_IDS = range(LEAST_ORDINARY, 30_000)
"""Ordinary tokens in every vocabulary of the last years."""

_ASKS_FOR_KEY = {
    False: "it wants an API key; put it in an environment variable and name that with --perf-server-key-env",
    True: "it does not take the API key that --perf-server-key-env names",
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to launch vLLM.

    python: interpreter of the environment that has vLLM. environment: variables of the process; the model's are added.
    port: 0 takes a free one.
    start_seconds: longest start in all. silent_seconds: longest start without a new word in the log.
    """

    python: str
    model: LocalModel
    environment: Mapping[str, str]
    log_path: Path
    port: int = 0
    start_seconds: float = 2700.0
    silent_seconds: float = 900.0
    grace_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers; a context manager that stops what it launched.

    token_ids: ids that prompts may be made of. process: None for an attached server, which is left running.
    given_facts: what it serves, part of a metric's identity. stand_in: see LocalModel.
    batch_invariant: it promises the same answer whatever else it is asked. start_seconds: from its launch until it
    was healthy; None for an attached server. compile_caches: facts of process.compile_caches around that start.
    invented: its weights are, so that its answers mean nothing; they still must stay the same.
    """

    endpoint: Endpoint
    token_ids: range
    process: ServerProcess | None = None
    given_facts: Mapping[str, Json] = field(default_factory=dict)
    stand_in: bool = False
    batch_invariant: bool = False
    start_seconds: float | None = None
    compile_caches: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    invented: bool = False

    @property
    def attached(self) -> bool:
        """Whether it is somebody's: its stack is then not that of this Python, and its pids are not known."""
        return self.process is None

    @property
    def compiled(self) -> bool:
        """Whether its start had to compile what the next one finds done."""
        return any(cache["state"] == "cold" for cache in self.compile_caches.values())

    def ended(self) -> ServerError | None:
        """Why it is not there any more; None while it is, and for an attached one, which is for others to stop."""
        try:
            if self.process is not None:
                self.process.check("between two metrics")
        except ServerError as error:
            return error

        return None

    def stack(self) -> dict[str, Json]:
        """What an attached server says of its software and its settings, for the provenance.

        A version that it does not say is unknown, a setting is null.
        """
        answer = self._pages()
        return {_engine(answer): answer.get("version", "unknown"), **settings_said(answer)}

    def facts(self) -> dict[str, Json]:
        """What really runs, from the log if launched and from the server's own pages; what is unknown is left out."""
        logged = self._logged()
        answer = self._pages()
        version = {_engine(answer): answer.pop("version")} if "version" in answer else {}
        return {**self.given_facts, **logged, **answer, **version}

    def started(self) -> str:
        """How long its start took and what of that its log explains, in one line; "" for an attached server."""
        times = self._start_times(self.process.log()) if self.process else {}
        if not times:
            return ""

        parts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times.items() if name != "whole")
        return f"the server started in {times['whole']:.0f} s" + (f": {parts}" if parts else "")

    def _logged(self) -> dict[str, Json]:
        if self.process is None:
            return {}

        log = self.process.log()
        times = self._start_times(log)
        facts: dict[str, Json] = {**read_facts(log), **({"start_seconds": dict(times)} if times else {})}
        return {**facts, "compile_caches": {name: dict(cache) for name, cache in self.compile_caches.items()}}

    def _start_times(self, log: str) -> dict[str, float]:
        """Seconds of the whole start, then of its parts as `log` tells them."""
        return {} if self.start_seconds is None else {"whole": self.start_seconds, **start_times(log)}

    def _pages(self) -> dict[str, Json]:
        return read_pages(partial(page, self.endpoint), self.endpoint.model)

    def log_size(self) -> int:
        """Bytes of the server's log so far, a mark for `log`; 0 if it is attached."""
        return self.process.log_size() if self.process else 0

    def log(self, start: int, end: int) -> str:
        """The server's log between two marks; empty if it is attached."""
        return self.process.log(start, end) if self.process else ""

    def explain(self, error: ServerError, doing: str) -> ServerError:
        """`error`, or the server's death with the end of its log if that is what is behind it."""
        if self.process and self.process.ended_within(_DEATH_SECONDS):
            try:
                self.process.check(doing)
            except ServerError as death:
                return death

        return error

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Raise the first failure in here, or the server's death if that is behind it; the others only follow it."""
        try:
            yield
        except* ServerError as failures:
            first = failures.exceptions[0]
        else:
            return

        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]

        raise self.explain(first, doing)

    def stop(self) -> None:
        """Stop a launched server with all its processes; an attached one is not ours to stop."""
        if self.process:
            self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def ordinary_ids(vocabulary: int) -> range:
    """The ids of a vocabulary of this size that prompts are made of."""
    return range(LEAST_ORDINARY if vocabulary >= 2 * LEAST_ORDINARY else 0, vocabulary)


def _as_it_is(server: Server) -> Server:
    return server


def _engine(answer: Mapping[str, Json]) -> str:
    """The component that a server's version is of; one that does not say is taken for vLLM."""
    return str(answer.get("engine", "vllm"))


def attach(url: str, *, model: str | None = None, key: str = "") -> Server:
    """Use a server that runs already; `model` may be left out if it serves exactly one. key: for a server that asks.

    Raises BadInput for an unusable URL, model name or key, ServerError if nothing answers there.
    """
    endpoint = Endpoint(base_url(url), model or "", key)
    reply = _models_page(endpoint)
    if reply.status in (401, 403):
        raise BadInput(f"{endpoint.url} answers HTTP {reply.status}: {_ASKS_FOR_KEY[bool(key)]}")
    if reply.location:
        raise BadInput(f"{endpoint.url}/v1/models redirects to {reply.location!r}: give the URL that this leads to")

    models = served_models(reply.text)
    if not models and model is None:
        raise ServerError(
            f"{endpoint.url}/v1/models answers HTTP {reply.status} and lists no model; is it an OpenAI-compatible "
            "server? If it serves one all the same, name it with --perf-server-model NAME. It says: "
            f"{reply.text[:200]!r}"
        )

    served = ", ".join(map(repr, models))
    if model is None and len(models) > 1:
        raise BadInput(f"{endpoint.url} serves {served}; say which one with --perf-server-model NAME")
    if model is not None and models and model not in models:
        raise BadInput(f"{endpoint.url} does not serve {model!r}; it serves {served}")

    endpoint = replace(endpoint, model=model or models[0])
    given: dict[str, Json] = {
        "model": printable(endpoint.model),
        "max_model_len": model_length(reply.text, endpoint.model) or "unknown",
    }
    return Server(endpoint, ATTACHED_TOKEN_IDS, given_facts=given)


def _models_page(endpoint: Endpoint) -> HttpReply:
    try:
        return fetch(endpoint, "/v1/models")
    except ServerError as error:
        cause = error.__cause__
        # asyncio's own OSError is of a host with several addresses, none of which answered.
        if isinstance(cause, ConnectionError | socket.gaierror) or type(cause) is OSError:
            raise ServerError(f"nothing answers at {endpoint.url}: {cause}; is the server up?") from error
        raise


@dataclass(frozen=True, slots=True)
class Starting:
    """A server whose process runs and that does not answer yet: several may be on their way at once.

    began_s: of time.monotonic. finish: what is still to be done to the server, or to be checked, once it answers.
    """

    options: ServerOptions
    endpoint: Endpoint
    process: ServerProcess
    caches: CompileCaches
    began_s: float
    finish: Callable[[Server], Server] = _as_it_is

    def then(self, finish: Callable[[Server], Server]) -> Starting:
        """The same, with something more to be done at its end."""
        before = self.finish
        return replace(self, finish=lambda server: finish(before(server)))

    def is_healthy(self, on_wait: OnWait | None = None) -> bool:
        """Whether it answers by now; raises ServerError as `wait` does. on_wait: told what the start is waiting for."""
        if _is_healthy(self.endpoint):
            return True

        self.process.check("while starting")
        waited, silent = time.monotonic() - self.began_s, self.process.silent_seconds()
        if waited > self.options.start_seconds:
            raise self.process.failure(f"the server is not ready after {waited:.0f} s")
        if silent > self.options.silent_seconds:
            raise self.process.failure(f"the server is not ready and its log is silent for {silent:.0f} s")
        if on_wait:
            said = headline(self.process.recent_log()) or "starting"
            on_wait(f"waiting for vLLM, {math.floor(waited)} s: {said}")

        return False

    def healthy(self) -> Server:
        """The server that answers now."""
        _check_is_ours(self.process, self.endpoint)
        model = self.options.model
        server = Server(
            self.endpoint,
            range(model.vocabulary),
            self.process,
            model.facts,
            model.stand_in,
            batch_invariant=self.options.environment.get("VLLM_BATCH_INVARIANT") == "1",
            start_seconds=time.monotonic() - self.began_s,
            compile_caches=self.caches.facts(),
            invented=True,
        )
        return self.finish(server)

    def wait(self, on_wait: OnWait | None = None) -> Server:
        """Wait until it serves our model.

        on_wait: told every half second what the start is waiting for. Raises ServerError, with the end of the log, if
        the server ends, falls silent, takes too long, or another server answers on the port; it is then stopped.
        """
        try:
            while not self.is_healthy(on_wait):
                self.process.ended_within(POLL_SECONDS)

            return self.healthy()
        except BaseException:
            self.process.stop()
            raise


def begin(options: ServerOptions) -> Starting:
    """Start the process of vLLM under guard; raises BadInput if the port is taken."""
    port = _free_port(options.port)
    # A name of our own: whoever else comes to listen on this port cannot be taken for our server. A key of our own:
    # other users of this host can neither ask it nor disturb it. No dash can begin it, which would make it a flag.
    endpoint = Endpoint(f"http://{_HOST}:{port}", f"decodegate-{secrets.token_hex(4)}", secrets.token_hex(32))
    environment = {**options.environment, **options.model.variables(options.environment)}
    flags = _tell_key(options, endpoint.key, environment)
    caches = CompileCaches(environment)
    process = ServerProcess(
        [*_command(options, endpoint, port), *flags],
        environment=environment,
        log_path=options.log_path,
        grace_seconds=options.grace_seconds,
    )
    return Starting(options, endpoint, process, caches, time.monotonic())


def _tell_key(options: ServerOptions, key: str, environment: dict[str, str]) -> list[str]:
    """Flags by which the server learns its key: not among them, since every user of the host can read arguments.

    Nor in `environment`, if that can be: vLLM finds what torch.compile left by the values of its variables, so that
    each start would compile anew, and up to 0.26 it writes them there, for everybody to read. Where the user has a file
    of flags, of which vLLM takes one, the key takes the place of the user's own in the environment all the same.
    """
    if any(word.partition("=")[0] == _CONFIG for word in options.model.arguments):
        environment[API_KEY] = key
        return []

    folder = options.log_path.parent
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "server.yaml"
    path.touch(mode=0o600)
    path.write_text(f'api-key: "{key}"\n', encoding="utf-8")
    return [_CONFIG, str(path)]


def _command(options: ServerOptions, endpoint: Endpoint, port: int) -> list[str]:
    return [
        options.python,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--host", _HOST),
        *("--port", str(port)),
        *("--model", str(options.model.folder)),
        *("--served-model-name", endpoint.model),
        *options.model.arguments,
    ]


def _free_port(port: int) -> int:
    # Without SO_REUSEPORT, which vLLM sets: with it two servers could share a port, and the kernel deal out requests.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be used for the server ({error.strerror}); leave it out to take a free one"
            ) from error

        return int(probe.getsockname()[1])


def _check_is_ours(process: ServerProcess, endpoint: Endpoint) -> None:
    models = served_models(page(endpoint, "/v1/models") or "")
    if endpoint.model in models:
        return

    process.check("while another server answered on its port")
    raise ServerError(
        f"{endpoint.url} is answered by another server, which serves {', '.join(map(repr, models)) or 'nothing'}; "
        f"it took the port between our choice and our start: run again; {process.tail()}"
    )


def _is_healthy(endpoint: Endpoint) -> bool:
    try:
        return fetch(endpoint, "/health").status == 200
    except ServerError:
        return False
