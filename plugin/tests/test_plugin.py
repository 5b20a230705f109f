"""The hooks, through pytester: what a user sees on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "scipy", "pynvml", "vllm", "aiohttp", "msgspec", "filelock")

PERF_TEST = """
    import pytest

    @pytest.mark.perf
    def test_speed():
        pass

    def test_other():
        pass
"""


@pytest.fixture(autouse=True)
def no_ini_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = f"import sys, pytest_decodegate.plugin; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plain_run_imports_nothing_heavy_either(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        f"""
        import sys

        def pytest_unconfigure():
            print("heavy:", [m for m in {HEAVY!r} if m in sys.modules])
        """
    )
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest_subprocess("-p", "no:benchmark", "-p", "no:hypothesispytest")
    result.stdout.fnmatch_lines(["heavy: []"])


def test_a_run_without_perf_tests_loads_options_and_fixtures_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            ours = sorted(name.removeprefix("pytest_decodegate.") for name in sys.modules if "decodegate." in name)
            print("ours:", *ours)
        """
    )
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest_subprocess()
    result.stdout.fnmatch_lines(["ours: fixtures plugin session session.hookspecs settings settings.options"])


def test_plain_pytest_deselects_perf_tests_and_says_how_to_run_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["1 perf test deselected; run with: pytest -m perf"])
    result.stdout.no_fnmatch_line("*=== perf ===*")


def test_plain_pytest_without_perf_tests_says_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*deselected*")
    result.stdout.no_fnmatch_line("*=== perf ===*")


@pytest.mark.parametrize("arguments", [("-m", "perf"), ("--perf",), ("-m", "perf and not slow"), ("-m", "(perf)")])
def test_perf_tests_run_when_asked_for(pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    pytester.makeini("[pytest]\nmarkers = slow\n")
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest("-v", *arguments)
    result.stdout.fnmatch_lines(["*::test_speed *"])


def test_extended_perf_tests_wait_for_their_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.perf
        def test_speed(): pass

        @pytest.mark.perf(extended=True)
        def test_sweep(): pass
        """
    )
    result = pytester.runpytest("-v", "-m", "perf")
    result.stdout.fnmatch_lines(
        ["1 extended perf test deselected; run with: pytest -m perf --perf-extended", "*::test_speed *"]
    )
    result.stdout.no_fnmatch_line("*::test_sweep *")

    result = pytester.runpytest("-v", "-m", "perf", "--perf-extended")
    result.stdout.fnmatch_lines(["*::test_speed *", "*::test_sweep *"])

    result = pytester.runpytest("--perf-extended")
    result.stdout.fnmatch_lines(["2 perf tests deselected; run with: pytest -m perf"])


def test_a_test_asks_for_what_the_user_pinned(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_pins(perf):
            assert (perf.pin("attention"), perf.pin("moe")) == ("TRITON_MLA", None)
        """
    )
    pytester.runpytest("--perf-pin=attention=TRITON_MLA").assert_outcomes(passed=1)


@pytest.mark.parametrize("expression", ["not perf", "not(perf)", "not (slow or perf)"])
def test_not_perf_is_no_wish_for_perf_tests(pytester: pytest.Pytester, expression: str) -> None:
    pytester.makeini("[pytest]\nmarkers = slow\n")
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest("-m", expression)
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.OK


def test_without_the_plugin_nothing_is_left_of_it(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = perf\n")
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest_subprocess("-p", "no:decodegate")
    result.assert_outcomes(passed=2)


def test_a_perf_run_that_measured_nothing_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.perf
        def test_speed():
            pytest.skip("no hardware")
        """
    )
    result = pytester.runpytest("-m", "perf")
    result.stdout.fnmatch_lines(["open: 1 perf test(s) were selected and none came to a verdict: *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_perf_test_that_measured_nothing_fails_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest("--perf")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["this perf test measured nothing: it came to no verdict"])


def test_perf_tests_that_another_plugin_deselects_are_not_missed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(config, items):
            yield
            items[:] = [item for item in items if item.name == "test_other"]
        """
    )
    pytester.makepyfile(PERF_TEST)
    assert pytester.runpytest("--perf").ret == pytest.ExitCode.OK


def test_collecting_perf_tests_is_no_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PERF_TEST)
    assert pytester.runpytest("-m", "perf", "--collect-only").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("perf(tolerance='5')", "*perf marker: tolerance '5' is not a percentage*"),
        ("perf(tolerance='-3%')", "*tolerance '-3%' is not a percentage*"),
        ("perf(tolerance='abc')", "*tolerance 'abc' is not a percentage*"),
        ("perf(tolerence='3%')", "*the perf marker knows no 'tolerence'*"),
        ("perf('3%')", "*takes no positional argument, found '3%'*"),
        ("perf(extended='yes')", "*perf marker: extended is 'yes'; give True or False"),
    ],
)
@pytest.mark.parametrize("asked", [(), ("-m", "perf")])
def test_a_bad_perf_marker_stops_the_run_at_collection(
    pytester: pytest.Pytester, marker: str, said: str, asked: tuple[str, ...]
) -> None:
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.{marker}\ndef test_speed(): pass\n")
    result = pytester.runpytest(*asked)
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    "marker", ["world_size(0)", "world_size('2')", "world_size(-1)", "world_size()", "world_size(n=2)"]
)
@pytest.mark.parametrize("takes", ["world_size", "perf", ""])
def test_a_bad_world_size_stops_the_run_at_collection(pytester: pytest.Pytester, marker: str, takes: str) -> None:
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.{marker}\ndef test_speed({takes}): pass\n")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["*::test_speed: world_size *"])
    result.stdout.no_fnmatch_line("*options.py*")
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--perf-replicates=1", "--perf-replicates: '1' is not a whole number of at least 2"),
        ("--perf-replicates=many", "--perf-replicates: 'many' is not*"),
        ("--perf-max-replicates=3", "--perf-max-replicates: '3' is not a whole number of at least 5"),
        ("--perf-pin=gemm=fast", "--perf-pin: 'gemm=fast' is not NAME=VALUE with a name out of attention, moe"),
        ("--perf-pin=attention=", "--perf-pin: 'attention=' is not NAME=VALUE*"),
        ("--perf-change=gpu-fairy", "*'gpu-fairy'*known are*driver*"),
        ("--perf-baseline=nowhere.json", "--perf-baseline: 'nowhere.json' is not a file*"),
        ("--perf-server=localhost", "--perf-server: 'localhost' is not a URL*"),
        ("--perf-server=http://[::1", "--perf-server: 'http://?::1' is not a URL*"),
        ("--perf-server=http://n0:http", "--perf-server: 'http://n0:http' is not a URL*"),
        ("--perf-budget=30", "--perf-budget: '30' is not a time above zero with its unit; write for example 30m*"),
        ("--perf-launch='", "--perf-launch: *cannot be split into arguments*"),
        ("--perf-server-model=kimi", "--perf-server-model: 'kimi' is for an attached server; *"),
        ("--perf-server-key-env=HOME", "--perf-server-key-env: only an attached server asks for a key*"),
        ("--perf-server-restarts=1", "--perf-server-restarts: '1' is not a whole number of at least 2"),
        ("--perf-quality-prompts=nowhere.jsonl", "--perf-quality-prompts: 'nowhere.jsonl' cannot be read*"),
        ("--perf-server-timeout=0", "--perf-server-timeout: '0' is not a number of seconds above zero"),
        ("--perf-warmup-timeout=soon", "--perf-warmup-timeout: 'soon' is not a number of seconds above zero"),
        ("--perf-nnodes=0", "--perf-nnodes: '0' is not a whole number of at least 1"),
        (
            "--perf-nnodes=2",
            "--perf-nnodes: 2 nodes also need --perf-node-start, --perf-rdzv-endpoint, --perf-listen-host",
        ),
        ("--perf-rdzv-endpoint=a:1", "--perf-nnodes: 1 nodes also need --perf-node-start, --perf-listen-host"),
        ("--perf-deadline=soon", "--perf-deadline: 'soon' is not*"),
        ("--perf-launch=-tp 8", "--perf-launch: '-tp 8' names no model*"),
        ("--perf-report=/dev/null/x", "--perf-report: cannot write to *"),
        ("-operf_tolerance=gemm", "*perf_tolerance: line 'gemm' is not of the form*"),
        ("-operf_tolerance=gemm = 5", "*perf_tolerance: line 'gemm = 5': tolerance ' 5' is not a percentage*"),
    ],
)
def test_a_bad_option_is_refused_by_name_and_value(pytester: pytest.Pytester, option: str, said: str) -> None:
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest(option)
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_server_and_serve_together_are_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--perf-server=http://127.0.0.1:1", "--perf-launch=x")
    result.stderr.fnmatch_lines(["ERROR: --perf-server and --perf-launch: give one*"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--perf-server-restarts=3", "--perf-server-restarts: an attached server is not ours to restart*"),
        ("--perf-server-key-env=sk-1234", "--perf-server-key-env: no environment variable of this name is set*"),
    ],
)
def test_what_an_attached_server_cannot_be_given(pytester: pytest.Pytester, option: str, said: str) -> None:
    result = pytester.runpytest("--perf-server=http://127.0.0.1:1", option)
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    result.stderr.no_fnmatch_line("*sk-1234*")


TWO_NODES = ("--perf-nnodes=2", "--perf-node-start=", "--perf-listen-host=127.0.0.1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--perf-rdzv-endpoint=n0:1",), "--perf-node-start: 1 command(s) for --perf-nnodes=2; give one for each node"),
        (("--perf-rdzv-endpoint=n0", "--perf-node-start="), "rendezvous endpoint 'n0' is not HOST:PORT*"),
    ],
)
def test_nodes_that_cannot_be_started_are_refused(pytester: pytest.Pytester, words: tuple[str, ...], said: str) -> None:
    result = pytester.runpytest(*TWO_NODES, *words)
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


@pytest.mark.parametrize("words", [("--perf-record=sometimes",), ("--perf-record", "sometimes")])
def test_an_unknown_record_mode_is_refused(pytester: pytest.Pytester, words: tuple[str, ...]) -> None:
    result = pytester.runpytest(*words)
    result.stderr.fnmatch_lines(["ERROR: --perf-record: 'sometimes' is none of *--perf-record=missing before a path"])


def test_world_sizes_become_ids_and_tests_are_grouped_by_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(1, 2)
        def test_a(world_size): pass

        @pytest.mark.world_size(1, 2)
        def test_b(world_size): pass

        def test_plain(world_size):
            assert world_size == 1
        """
    )
    result = pytester.runpytest("-v", "--setup-plan")
    order = [line.split()[0].rpartition("::")[2] for line in result.outlines if "fixtures used" in line]
    assert order.index("test_b[world=1]") < order.index("test_a[world=2]")
    assert "test_plain" in order


@pytest.mark.parametrize("fixtures", [("gpus",), ("gpus", "world_size")])
def test_gpus_skips_and_says_why(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fixtures: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(f"def test_needs_one({', '.join(fixtures)}): assert gpus")
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no GPU: ?*"])


def test_a_world_size_that_nobody_takes_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.world_size(2)\ndef test_speed(perf): pass\n")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["*::test_speed: has a world_size marker but takes no world_size; *"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_a_fixture_asked_for_by_name_runs_one_rank(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_late(request): assert request.getfixturevalue('torchrun').world_size == 1")
    pytester.runpytest().assert_outcomes(passed=1)


def test_xdist_and_a_perf_run_exclude_each_other(pytester: pytest.Pytester) -> None:
    # Without xdist installed, a plugin that registers its options is what decodegate sees of it.
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--workers", dest="numprocesses", type=int, default=None)
            parser.addoption("--dist", default="no")
        """
    )
    pytester.makepyfile(PERF_TEST)
    result = pytester.runpytest("--workers=2", "-m", "perf")
    result.stderr.fnmatch_lines(["ERROR: perf tests own the hardware*(-n 2); run them without -n and --dist"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert pytester.runpytest("--workers=2").ret == pytest.ExitCode.OK


def test_the_gate_of_one_metric_writes_a_json_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_decodegate.metric import Metric, Replicate
        from pytest_decodegate.measure.source import Taken

        class Source:
            level = "process"

            def take(self, count):
                return Taken("process", tuple(Replicate((1.0, 1.1, 1.2, 1.05)) for _ in range(count)))

        @pytest.mark.perf
        def test_speed(perf):
            perf.gate(Metric.of("made_up", "cpu"), Source())

        @pytest.mark.perf
        def test_same_name(perf):
            perf.gate(Metric.of("made_up", "cpu"), Source())
        """
    )
    result = pytester.runpytest_subprocess("-m", "perf", "--perf-record", "--perf-report=report")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "made_up: NO_BASELINE: *; recorded in 0001_*",
            "BadInput: metric 'made_up' was measured by *::test_speed in this run already; give each its own name",
            "counts: 1 ERROR, 1 RECORDED",
            "answer: NOT PROVEN: 2 metrics in *",
        ]
    )
    _, first, *others = map(json.loads, (pytester.path / "report/results.jsonl").read_text().splitlines())
    assert first["verdict"] == "NO_BASELINE"
    assert first["measured"] == pytest.approx(1.075)
    assert [line["event"] for line in others] == ["begun", "failed", "end", "answer"]
    assert others[-1]["answer"] == "NOT PROVEN"
