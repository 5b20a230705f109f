"""The client and the closed loop against a scripted server that misbehaves in one way at a time."""

import asyncio
import gzip
import zlib

import pytest
from aiohttp import web
from loops import complete, windows
from scripted import STREAM, TOKENS, ScriptedServer, answer, as_asked, event, refusing, streaming, token

from pytest_decodegate.client.endpoint import base_url
from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.measure.window import Load
from pytest_decodegate.serving.server import Server, attach


def test_a_good_answer(scripted: ScriptedServer) -> None:
    timing = complete(scripted)
    assert (timing.tokens, timing.counted_by, timing.prompt_tokens) == (TOKENS, "token_ids", 3)
    assert timing.itl_s
    assert scripted.prompts == [[1, 2, 3]]


def test_a_stamp_lies_between_the_write_of_its_token_and_of_what_follows_the_wait(scripted: ScriptedServer) -> None:
    written: list[float] = []
    scripted.completion = streaming(answer(), pause_s=0.2, written=written)
    stamps = [at_s for at_s, _ in complete(scripted).arrivals]
    assert len(stamps) == TOKENS
    assert all(write <= stamp for write, stamp in zip(written, stamps, strict=False))
    # 0.2 s is enough for a byte to cross the loopback even on a busy machine.
    assert all(stamp <= following for stamp, following in zip(stamps, written[1:], strict=False))


def test_bytes_cut_anywhere(scripted: ScriptedServer) -> None:
    stream = b"".join(answer())
    scripted.completion = streaming([stream[start : start + 7] for start in range(0, len(stream), 7)])
    assert complete(scripted).tokens == TOKENS


def test_several_events_in_one_read_and_crlf(scripted: ScriptedServer) -> None:
    scripted.completion = streaming([b": hello\r\n\r\n", b"".join(answer()).replace(b"\n", b"\r\n")])
    timing = complete(scripted)
    assert timing.tokens == TOKENS


def test_gzip(scripted: ScriptedServer) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        headers = {**STREAM, "Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(b"".join(answer())), headers=headers)

    scripted.completion = handle
    assert complete(scripted).tokens == TOKENS


def test_gzip_in_chunks_as_a_proxy_sends_them(scripted: ScriptedServer) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**STREAM, "Content-Encoding": "gzip"})
        await response.prepare(request)
        packer = zlib.compressobj(wbits=31)
        for piece in answer():
            await response.write(packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH))
            await asyncio.sleep(0.02)

        await response.write(packer.flush())
        return response

    scripted.completion = handle
    timing = complete(scripted)
    assert timing.tokens == TOKENS
    assert timing.itl_s


def test_a_character_cut_in_two(scripted: ScriptedServer) -> None:
    body = event('{"choices": [{"text": "é🙂", "token_ids": [1], "finish_reason": "length"}]}')
    scripted.completion = streaming([*(bytes([byte]) for byte in body), event("[DONE]")])
    assert complete(scripted).tokens == 1


def test_a_role_first_and_no_end_marker(scripted: ScriptedServer) -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    scripted.completion = streaming([b": keep-alive\n\n", role, *answer()[:TOKENS]], pause_s=0.01)
    timing = complete(scripted)
    assert (timing.tokens, len(timing.arrivals)) == (TOKENS, TOKENS)


def test_early_close(scripted: ScriptedServer) -> None:
    scripted.completion = streaming(answer()[:2])
    with pytest.raises(ServerError, match="closed the stream after 2 of 4 tokens"):
        complete(scripted)


def test_broken_connection(scripted: ScriptedServer) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = await streaming(answer()[:2])(request)
        assert request.transport
        request.transport.abort()
        return response

    scripted.completion = handle
    with pytest.raises(ServerError, match=rf"{scripted.url}, asked for a completion: "):
        complete(scripted)


def test_error_inside_a_good_stream(scripted: ScriptedServer) -> None:
    scripted.completion = streaming([token(1), event({"error": {"message": "EngineCore died"}}), event("[DONE]")])
    with pytest.raises(ServerError, match=r"after 1 of 4 tokens: .*EngineCore died"):
        complete(scripted)


@pytest.mark.parametrize("last", [b"", b": ping\n\n"])
def test_stalled_stream(scripted: ScriptedServer, last: bytes) -> None:
    scripted.completion = streaming([token(1), last] if last else [token(1)], then_hang=True)
    with pytest.raises(ServerError, match=r"nothing new for 0\.2 s"):
        complete(scripted, stall_seconds=0.2)


def test_keep_alives_are_no_progress(scripted: ScriptedServer) -> None:
    scripted.completion = streaming([token(1), *[b": ping\n\n"] * 1000], pause_s=0.02)
    with pytest.raises(ServerError, match=r"nothing new for 0\.3 s"):
        complete(scripted, stall_seconds=0.3)


def test_slow_but_steady_is_no_stall(scripted: ScriptedServer) -> None:
    cut = [part for piece in answer() for part in (piece[:3], piece[3:])]  # also when no read holds a whole "data:"
    scripted.completion = streaming(cut, pause_s=0.12)
    assert complete(scripted, stall_seconds=1.0).latency_s > 1.0


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_http_errors_quote_the_body(scripted: ScriptedServer, status: int) -> None:
    scripted.completion = refusing(status, '{"error": {"message": "prompt is too long"}}')
    with pytest.raises(ServerError, match=f"HTTP {status}: .*prompt is too long"):
        complete(scripted)


def test_wrong_model_lists_the_served_ones(scripted: ScriptedServer) -> None:
    scripted.completion = refusing(404, "no such model")
    scripted.models = ["llama", "qwen"]
    with pytest.raises(ServerError, match="asked for model 'the-model', it serves 'llama', 'qwen'"):
        complete(scripted)


def test_an_answer_that_is_no_stream(scripted: ScriptedServer) -> None:
    scripted.completion = refusing(200, "hello")
    with pytest.raises(ServerError, match="no stream but text/plain: hello"):
        complete(scripted)


def test_uncountable_tokens(scripted: ScriptedServer) -> None:
    scripted.completion = streaming([event({"choices": [{"text": "a", "finish_reason": "length"}]}), event("[DONE]")])
    with pytest.raises(ServerError, match="return_token_ids"):
        complete(scripted)


def test_a_server_that_refuses_unknown_fields_counts_by_usage(scripted: ScriptedServer) -> None:
    asked: list[bool] = []
    usage = [event({"choices": [{"text": "a"}], "usage": {"completion_tokens": n}}) for n in range(1, TOKENS + 1)]

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append("return_token_ids" in await request.json())
        forbidden = "[{'type': 'extra_forbidden', 'loc': ('body', 'return_token_ids')}]"  # as TensorRT-LLM says it
        return await (refusing(400, forbidden) if asked[-1] else streaming([*usage, event("[DONE]")], pause_s=0.01))(
            request
        )

    scripted.completion = handle
    (window,) = windows(attach(scripted.url), Load(1, 16, TOKENS, 2))
    assert window.broken == ()
    assert window.facts["counted_by"] == "continuous_usage"
    assert asked == [True, False, True, False, False, False]  # once in the warm-up and once in the window


def test_closed_loop_sends_new_prompts_at_the_concurrency_asked_for(scripted: ScriptedServer) -> None:
    scripted.completion = as_asked(pause_s=0.02)
    load = Load(concurrency=3, prompt_tokens=16, output_tokens=8, requests=6)
    measured = windows(attach(scripted.url), load, 2)
    assert [window.broken for window in measured] == [(), ()]
    assert [len(window.tpot_s) for window in measured] == [6, 6]
    assert scripted.most_open == 3
    # Of each stream: a first one, one that begins before all first ones have ended, two that are measured, one more.
    assert 3 + 2 * 3 * 4 <= len(scripted.prompts) <= 3 + 2 * 3 * 6
    assert len({tuple(prompt) for prompt in scripted.prompts}) == len(scripted.prompts)


def test_closed_loop_reads_the_counters(scripted: ScriptedServer) -> None:
    scripted.completion = streaming(answer(), pause_s=0.01)
    scripted.metrics = lambda: (
        f"vllm:request_time_per_output_token_seconds_count {len(scripted.prompts)}\n"
        f"vllm:request_time_per_output_token_seconds_sum {len(scripted.prompts) * 0.001}\n"
        f"vllm:prefix_cache_hits_total {len(scripted.prompts)}\n"
        f"vllm:generation_tokens_total {len(scripted.prompts) * TOKENS}\n"
        "vllm:request_queue_time_seconds_sum 0\n"
    )
    (window,) = windows(attach(scripted.url), Load(1, 16, TOKENS, 2))
    text = " | ".join(window.broken)
    assert window.unchecked == "preemptions (its /metrics has no number for vllm:num_preemptions_total)"
    assert "3 tokens came from the prefix cache" in text
    assert "and the server's own 1.000 ms differ by" in text


def test_closed_loop_ends_at_the_first_failure(scripted: ScriptedServer) -> None:
    scripted.completion = refusing(500, "CUDA out of memory")
    with pytest.raises(ServerError, match="CUDA out of memory"):
        windows(attach(scripted.url), Load(4, 16, TOKENS, 4))


def test_short_answers_break_the_window(scripted: ScriptedServer) -> None:
    scripted.completion = streaming(answer(3), pause_s=0.005)
    (window,) = windows(attach(scripted.url), Load(1, 16, TOKENS, 2))
    assert "3 of 3 answers do not have the tokens asked for" in window.broken[0]


def test_attach_takes_the_only_model_and_its_facts(scripted: ScriptedServer) -> None:
    server = attach(scripted.url + "/v1/")
    assert server.endpoint == scripted.endpoint
    assert server.facts() == {"model": "the-model", "max_model_len": 512}
    assert server.stack()["vllm"] == "unknown"
    scripted.version = "0.33.0"
    assert server.stack()["vllm"] == "0.33.0"
    server.stop()
    assert attach(scripted.url, model="the-model").endpoint == scripted.endpoint


def test_attach_refuses_what_it_cannot_choose(scripted: ScriptedServer) -> None:
    scripted.models = ["a", "b"]
    with pytest.raises(BadInput, match="serves 'a', 'b'; say which one with --perf-server-model NAME"):
        attach(scripted.url)
    with pytest.raises(BadInput, match="does not serve 'c'; it serves 'a', 'b'"):
        attach(scripted.url, model="c")

    scripted.models = []
    with pytest.raises(ServerError, match=r"HTTP 200 and lists no model.*It says: "):
        attach(scripted.url)


def test_attach_to_nothing(unused_port: int) -> None:
    with pytest.raises(ServerError, match=f"nothing answers at http://127.0.0.1:{unused_port}"):
        attach(f"http://127.0.0.1:{unused_port}")


@pytest.fixture
def unused_port() -> int:
    server = ScriptedServer()
    server.close()
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://host:port", "http://h/?a=1"])
def test_unusable_urls(url: str) -> None:
    with pytest.raises(BadInput, match="is not usable"):
        base_url(url)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host:8000", "http://host:8000"),
        (" http://host:8000/v1/ ", "http://host:8000"),
        ("https://host/llm/v1", "https://host/llm"),
    ],
)
def test_base_urls(text: str, url: str) -> None:
    assert base_url(text) == url


def test_a_server_that_only_was_attached_is_left_alone(scripted: ScriptedServer) -> None:
    with Server(scripted.endpoint, range(10)):
        pass

    assert complete(scripted).tokens == TOKENS
