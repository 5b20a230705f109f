"""From the timed bytes of one streamed answer to its tokens and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final, Literal

from ..cause import cause_of_text
from ..errors import ServerError
from .chunk import Chunk, Usage, read_chunk, read_chunks
from .sse import Event, EventParser, plain_data

TPOT_FORMULA: Final = "tpot_client_v2"
"""Seconds per output token as the client sees it: (last arrival - first arrival) / (tokens - tokens of the first).

Tokens are counted from ids or usage; a token arrives when the bytes of its chunk are read from the socket, and chunks
that come AT_ONCE are one arrival. Whatever the first arrival holds was made before it, so only the tokens after it are
charged with the time after it. Never compare with a TPOT of another formula id: "tpot_client_v1" divided by all tokens
but one, and made a server look faster that held its first tokens back.
"""

AT_ONCE: Final = 0.1
"""Of the time a token takes: what follows a chunk sooner was made before it, and is of one burst with it."""

ONE_PIECE: Final = 0.01
"""Of the time until the first arrival: an answer all of which follows sooner was collected, and only cut on its way."""

_DONE: Final = "[DONE]"

CountedBy = Literal["token_ids", "continuous_usage", "final_usage"]
Arrival = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as recorded, unread: reading waits until nothing is being timed.

    sent_s and the times of `pieces` are seconds on one monotonic clock.
    """

    sent_s: float
    pieces: tuple[tuple[float, bytes], ...]
    asked_tokens: int


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One completed request; times are seconds on the client's monotonic clock.

    arrivals: (time, tokens) of each chunk that carried tokens; 0 tokens each where only their sum is known.
    """

    asked_tokens: int
    tokens: int
    counted_by: CountedBy
    sent_s: float
    first_token_s: float
    last_token_s: float
    ended_s: float
    arrivals: tuple[Arrival, ...]
    finish_reason: str | None
    prompt_tokens: int | None

    @property
    def ttft_s(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.first_token_s - self.sent_s

    @property
    def latency_s(self) -> float:
        """Seconds from sending the request to the end of the answer."""
        return self.ended_s - self.sent_s

    @property
    def is_counted(self) -> bool:
        """Whether it is known how many tokens each arrival brought."""
        return all(tokens for _, tokens in self.arrivals)

    @property
    def first_burst(self) -> Arrival:
        """What came at once at the beginning, as one arrival."""
        return first_burst(self.arrivals)

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token, formula TPOT_FORMULA; None where that cannot be known.

        It takes two arrivals that time lies between, and the number of tokens in the first.
        """
        if not self.is_counted:
            return None

        at_s, tokens = self.first_burst
        seconds = self.last_token_s - at_s
        if tokens == self.tokens or seconds < ONE_PIECE * (at_s - self.sent_s):
            return None

        return seconds / (self.tokens - tokens)

    @property
    def largest_burst(self) -> int:
        """Most tokens that came at once after the first burst; 0 where no TPOT is known."""
        if (tpot_s := self.tpot_s) is None:
            return 0

        start_s, _ = self.first_burst
        most = burst = 0
        before_s = start_s
        for at_s, tokens in self.arrivals:
            if at_s > start_s:
                burst = tokens + (burst if at_s - before_s <= AT_ONCE * tpot_s else 0)
                most, before_s = max(most, burst), at_s

        return most

    @property
    def itl_s(self) -> tuple[float, ...] | None:
        """Seconds between tokens, or None unless every chunk carried exactly one token."""
        if any(tokens != 1 for _, tokens in self.arrivals):
            return None

        return tuple(after - before for (before, _), (after, _) in pairwise(self.arrivals))


def read(exchange: Exchange) -> RequestTiming:
    """Count the tokens of a recorded answer and time them.

    Raises ServerError for an error inside the stream, an answer cut short, tokens that cannot be counted, or counts
    that contradict each other.
    """
    if ordinary := _read_ordinary(exchange):
        return ordinary

    answer = _Answer(exchange.asked_tokens)
    parser = EventParser()
    at_s = exchange.sent_s
    for at_s, piece in exchange.pieces:
        answer.add(at_s, parser.feed(piece))

    answer.add(at_s, parser.close())
    return answer.timing(exchange, ended_s=at_s)


def _read_ordinary(exchange: Exchange) -> RequestTiming | None:
    """The same at half the cost for an answer as most are: plain events, none cut, no error, [DONE] at the end."""
    pieces = [piece for _, piece in exchange.pieces]
    data = plain_data(b"".join(pieces))
    if not data or data[-1] != _DONE.encode() or not all(piece.endswith(b"\n\n") for piece in pieces):
        return None

    chunks = read_chunks(data[:-1])
    if chunks is None:
        return None

    answer = _Answer(exchange.asked_tokens)
    following = iter(chunks)
    for at_s, piece in exchange.pieces:
        answer.add_chunks(at_s, islice(following, piece.count(b"\n") // 2))

    ended_s = exchange.pieces[-1][0]
    answer.add(ended_s, [Event("message", _DONE)])
    return answer.timing(exchange, ended_s)


def first_burst(arrivals: Sequence[Arrival]) -> Arrival:
    """When the last of the chunks came that came at once at the beginning, and how many tokens they hold in all."""
    last_s, left = arrivals[-1][0], sum(tokens for _, tokens in arrivals)
    burst = 0
    for (at_s, tokens), (next_s, _) in pairwise(arrivals):
        burst, left = burst + tokens, left - tokens
        # What a token takes is known the better, the more of the burst is taken away.
        if next_s - at_s > AT_ONCE * (last_s - at_s) / left:
            return at_s, burst

    return last_s, burst + arrivals[-1][1]


class TokenClock:
    """When a stream that is still open last brought a token: all else, be it comments or empty chunks, is no progress.

    began_s: monotonic seconds, from which the first token is waited for.
    """

    def __init__(self, began_s: float) -> None:
        self.last_s = began_s
        self.tokens = 0
        self._parser = EventParser()
        self._seen = 0

    def read(self, pieces: Sequence[tuple[float, bytes]]) -> float:
        """`last_s` after what is new in `pieces`, which only grow."""
        for at_s, piece in pieces[self._seen :]:
            for event in self._parser.feed(piece):
                if self._brings_tokens(event):
                    self.last_s = at_s

        self._seen = len(pieces)
        return self.last_s

    def _brings_tokens(self, event: Event) -> bool:
        try:
            chunk = read_chunk(event.data)
        except ValueError:  # whoever reads the whole answer will say so
            return False

        choices = (chunk and chunk.choices) or ()
        reported = (chunk and chunk.usage and chunk.usage.completion_tokens) or 0
        counted = sum(len(choice.token_ids or ()) or int(choice.has_text) for choice in choices)
        grown = counted > 0 or (bool(choices) and reported > self.tokens)
        self.tokens = max(reported, self.tokens + counted)
        return grown


def progress(pieces: Sequence[tuple[float, bytes]], asked_tokens: int) -> str:
    """How far an answer had come that did not come to its end: "50 of 128 tokens had come"."""
    clock = TokenClock(0.0)
    clock.read(pieces)
    return f"{clock.tokens} of {asked_tokens} tokens had come"


class _Answer:
    """What the chunks of one answer have said so far."""

    def __init__(self, asked_tokens: int) -> None:
        self._asked_tokens = asked_tokens
        self._by_ids: list[Arrival] = []
        self._by_usage: list[Arrival] = []
        self._with_text: list[float] = []
        self._usage_tokens: int | None = None
        self._prompt_tokens: int | None = None
        self._finish_reason: str | None = None
        self._done = False

    def add(self, at_s: float, events: Iterable[Event]) -> None:
        for event in events:
            data = event.data.strip()
            if data == _DONE:
                self._done = True
            elif data:
                self._add_chunk(at_s, self._decode(event))

    def add_chunks(self, at_s: float, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._add_chunk(at_s, chunk)

    def _decode(self, event: Event) -> Chunk:
        try:
            chunk = read_chunk(event.data)
        except ValueError as error:
            raise ServerError(
                f"the server sent a chunk {self._progress()} that is not of the OpenAI format ({error}): "
                f"{event.data[:200]!r}"
            ) from error

        # An error after the status line can only be told inside the stream, and counts as a failed request.
        if event.kind == "error" or (chunk and chunk.error):
            said = event.data[:500]
            raise ServerError(f"the server reported an error {self._progress()}: {said}", cause=cause_of_text(said))
        if chunk is None:
            raise ServerError(
                f"the server sent something {self._progress()} that is no JSON object: {event.data[:200]!r}"
            )

        return chunk

    def _progress(self) -> str:
        return f"inside the stream, after {self._counted()} of {self._asked_tokens} tokens"

    def _counted(self) -> int:
        return sum(tokens for _, tokens in self._by_ids) or self._usage_tokens or 0

    def _add_chunk(self, at_s: float, chunk: Chunk) -> None:
        for choice in chunk.choices or ():
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.token_ids:
                self._by_ids.append((at_s, len(choice.token_ids)))
            elif choice.has_text:
                self._with_text.append(at_s)

        if chunk.usage:
            self._add_usage(at_s, chunk.usage, carries_choices=bool(chunk.choices))

    def _add_usage(self, at_s: float, usage: Usage, carries_choices: bool) -> None:
        total = usage.completion_tokens or 0
        new = total - (self._usage_tokens or 0)
        # A trailing usage chunk repeats the total after the last token: it times nothing.
        if carries_choices and new > 0:
            self._by_usage.append((at_s, new))

        self._usage_tokens = total
        if usage.prompt_tokens is not None:
            self._prompt_tokens = usage.prompt_tokens

    def timing(self, exchange: Exchange, ended_s: float) -> RequestTiming:
        if not self._done and self._finish_reason is None:
            raise ServerError(
                f"the server closed the stream after {self._counted()} of {self._asked_tokens} tokens, without a "
                "finish reason or [DONE]; its log should say why"
            )

        counted_by, arrivals, tokens = self._count()
        return RequestTiming(
            asked_tokens=self._asked_tokens,
            tokens=tokens,
            counted_by=counted_by,
            sent_s=exchange.sent_s,
            first_token_s=arrivals[0][0],
            last_token_s=arrivals[-1][0],
            ended_s=ended_s,
            arrivals=tuple(arrivals),
            finish_reason=self._finish_reason,
            prompt_tokens=self._prompt_tokens,
        )

    def _count(self) -> tuple[CountedBy, list[Arrival], int]:
        if self._by_ids:
            return "token_ids", self._by_ids, self._agreed(sum(tokens for _, tokens in self._by_ids))
        if self._usage_tokens is None:
            raise ServerError(
                "the tokens of the answer cannot be counted: the server sends neither token ids (it ignored "
                "return_token_ids) nor usage (it ignored stream_options.include_usage; vLLM has "
                "--enable-force-include-usage); chunks are not tokens, so there is no TPOT"
            )
        # Usage in one chunk alone is a final usage, even if that chunk also carries the last text.
        if len(self._by_usage) > 1 and self._agreed(sum(tokens for _, tokens in self._by_usage)):
            return "continuous_usage", self._by_usage, self._usage_tokens
        if not self._with_text:
            raise ServerError(f"the server answered without any text; usage says {self._usage_tokens} tokens")

        # As many chunks with text as tokens: each of them holds one. With fewer chunks nobody knows which hold more.
        each = 1 if len(self._with_text) == self._usage_tokens else 0
        return "final_usage", [(at_s, each) for at_s in self._with_text], self._usage_tokens

    def _agreed(self, counted: int) -> int:
        if self._usage_tokens not in (None, counted):
            raise ServerError(
                f"the server contradicts itself: {counted} tokens in the chunks, {self._usage_tokens} in the usage"
            )

        return counted
