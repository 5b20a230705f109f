"""Loads that tests of servers declare: all are measured on each server that is started, so they must be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest
from aiohttp import web
from scripted import ScriptedServer, answer, streaming

from pytest_decodegate.measure.window import Load
from pytest_decodegate.session.forecast import loads_of
from pytest_decodegate.session.session import session_of

TESTS = """
    import pytest
    from pytest_decodegate.metric import Metric
    from pytest_decodegate.measure.window import Load


    def load(tokens):
        return Load(1, 4, tokens, 3)


    @pytest.mark.perf(metric="made[t={tokens}]", load=load)
    @pytest.mark.parametrize("tokens", [12, 13])
    def test_tpot(perf, server, tokens):
        perf.measure_tpot(Metric.of(f"made[t={tokens}]", "cpu", tolerance=0.95), server, load(tokens))


    @pytest.mark.perf(metric="other", load=lambda: load(12))
    def test_another(perf, server):
        perf.measure_tpot(Metric.of("other", "cpu", tolerance=0.95), server, load(13))


    @pytest.mark.perf(stand_in="elsewhere", load=lambda: load(9))
    def test_elsewhere(perf, server):
        pytest.skip("there is a server")
"""


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    made = ScriptedServer(), ScriptedServer()
    yield made
    for server in made:
        server.close()


def counting(server: ScriptedServer, log: Counter[tuple[str, int]]) -> str:
    """The URL of `server`, which takes 4 ms a token and notes how many tokens it is asked for, and how often."""

    async def complete(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        log[server.url, tokens] += 1
        pieces = answer(tokens)
        timed, end = pieces[: tokens - 1], b"".join(pieces[tokens - 1 :])  # no pause after the last token
        return await streaming([*timed, end], pause_s=0.004)(request)

    server.completion = complete
    server.owner, server.version = "vllm", "0.26.0"
    return server.url


def test_the_loads_of_a_run_are_those_of_the_metrics_that_it_measures(pytester: pytest.Pytester) -> None:
    items = pytester.getitems(TESTS)
    found = loads_of(items, stand_in=False)
    assert found == {"made[t=12]": Load(1, 4, 12, 3), "made[t=13]": Load(1, 4, 13, 3), "other": Load(1, 4, 12, 3)}
    assert loads_of(items, stand_in=True) == {"elsewhere": Load(1, 4, 9, 3)}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ((), ""),
        (("--perf-server-restarts=3",), "on the same 3 starts of the server"),
        (("--perf-base=this", "--perf-candidate=env:A=1"), "on the same servers, for at most 30 min (--perf-budget)"),
    ],
)
def test_a_run_says_first_which_metrics_share_servers(
    pytester: pytest.Pytester, options: tuple[str, ...], how: str
) -> None:
    items = pytester.getitems(TESTS)
    config = pytester.parseconfigure("-m", "perf", "--perf-launch=/models/kimi", *options)
    with closing(session_of(config)) as session:
        said = [line for line in session.forecast(items) if "on the same" in line]

    assert said == ([f"made[t=12], made[t=13], other: {how}"] if how else [])


def test_windows_of_all_declared_loads_are_measured_before_the_first_verdict(
    pytester: pytest.Pytester, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    """Two attached servers stand for those that are started: the second test adds no window, but finds its own.

    It takes what its windows take.
    """
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=TESTS)
    log: Counter[tuple[str, int]] = Counter()
    base, candidate = (counting(server, log) for server in servers)
    stacks = (f"--perf-base=server={base}", f"--perf-candidate=server={candidate}")
    pairs = ("--perf-replicates=3", "--perf-max-replicates=3")
    result = pytester.runpytest_subprocess("-v", "-m", "perf", "-k", "test_tpot", *stacks, *pairs)
    result.assert_outcomes(passed=2, deselected=2)
    assert {tokens: log[url, tokens] for url in (base, candidate) for tokens in (12, 13)} == {12: 15, 13: 15}
    result.stdout.fnmatch_lines(["*3 pairs of windows that earlier metrics were measured on*"])


def test_a_load_that_is_not_the_declared_one_is_refused(
    pytester: pytest.Pytester, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=TESTS)
    url = counting(servers[0], Counter())
    result = pytester.runpytest_subprocess("-m", "perf", "-k", "test_another", f"--perf-server={url}")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*declares load=Load(concurrency=1*output_tokens=12*measures under*output_tokens=13*"])


@pytest.mark.parametrize("load", ["lambda missing: 1", "lambda tokens: tokens / 0 if False else int('x')", "'c=1'"])
def test_a_load_that_cannot_be_made_of_the_parameters_is_refused(pytester: pytest.Pytester, load: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.perf(load={load})
        @pytest.mark.parametrize("tokens", [1])
        def test_tpot(perf, tokens):
            pass
        """
    )
    result = pytester.runpytest_inprocess("--perf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*perf marker: load=* is to be a function of parameters of the test*tokens*"])
