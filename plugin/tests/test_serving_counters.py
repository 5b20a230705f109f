import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.client.counters import Counters, Received, acceptance, check, parse

PAGE = """\
# HELP vllm:request_time_per_output_token_seconds Histogram
# TYPE vllm:request_time_per_output_token_seconds histogram
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="0.01",model_name="m"} 3.0
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="m"} 3.0
vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="m"} 0.03
vllm:request_time_per_output_token_seconds_count{engine="1",model_name="m {a} \\" 9"} 1.0
vllm:request_time_per_output_token_seconds_sum{engine="1",model_name="m {a} \\" 9"} 1e-2
vllm:prefix_cache_hits_total{engine="0"} 5
vllm:num_preemptions_total{engine="0"} 0.0 1700000000000
vllm:generation_tokens_total 128.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.001
vllm:something NaN
not a sample
"""
RECEIVED = Received(requests=4, tokens=128, tpot_s=0.0101, latency_s=2.0)
GOOD = {
    "tpot_sum": 0.04,
    "tpot_count": 4.0,
    "prefix_hits": 0.0,
    "preemptions": 0.0,
    "generation_tokens": 128.0,
    "queue_sum": 0.001,
}


def broken(received: Received = RECEIVED, **changes: float) -> str:
    return " | ".join(check(Counters({**GOOD, **changes}), received).broken)


def test_parse_sums_over_labels() -> None:
    counters = parse(PAGE)
    assert counters
    assert counters.missing == ()
    assert counters.values == {**GOOD, "prefix_hits": 5.0}


ROUTER = 'vllm:current_qps{server="http://e:8000"} 1.5\nvllm:num_requests_running{server="http://e:8000"} 2\n'


@pytest.mark.parametrize(
    "page", [None, "", "<html>", "sglang:num_running_reqs 3\nprocess_cpu_seconds_total 1\n", ROUTER]
)
def test_a_page_without_the_series_of_an_engine_is_no_counters(page: str | None) -> None:
    assert parse(page) is None


@pytest.mark.parametrize("number", ["", "NaN", "nonsense"])
def test_a_series_without_a_number_is_one_check_less_and_all_others_are_made(number: str) -> None:
    lines = [line for line in PAGE.splitlines() if "preemptions" not in line]
    counters = parse("\n".join([*lines, f"vllm:num_preemptions_total {number}" if number else ""]))
    assert counters
    assert "preemptions" not in counters.values
    result = check(Counters({**GOOD, **counters.values}).since(Counters(dict.fromkeys(counters.values, 0.0))), RECEIVED)
    assert result.broken == ("5 tokens came from the prefix cache; start vLLM with --no-enable-prefix-caching",)
    assert result.unchecked == "preemptions (its /metrics has no number for vllm:num_preemptions_total)"


def test_what_only_one_of_two_pages_knows_is_not_checked() -> None:
    before = {name: 0.0 for name in GOOD if name != "queue_sum"}
    assert check(Counters(GOOD).since(Counters(before)), RECEIVED).unchecked.startswith("waiting in its queue (its")


def test_a_page_that_is_gone_checks_nothing_and_blames_nobody() -> None:
    result = check(Counters({}).since(Counters(GOOD)), RECEIVED)
    assert result.broken == ()
    assert result.unchecked.startswith("TPOT, the number of requests, ")


def test_a_disagreement_names_the_burst_at_the_beginning() -> None:
    assert "up to 30 tokens came with the first arrival" in broken(Received(4, 128, 0.009, 2.0, first_tokens=30))
    assert "first arrival" not in broken(Received(4, 128, 0.009, 2.0))


def test_what_the_client_cannot_time_is_not_compared() -> None:
    assert broken(Received(4, 128, None, 2.0)) == ""


def test_older_names_are_found() -> None:
    counters = parse(PAGE.replace("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"))
    assert counters
    assert counters.values["prefix_hits"] == 5


def test_speculative_counters_are_kept_when_there_are_any() -> None:
    counters = parse(PAGE + "vllm:spec_decode_num_drafts_total 7\n")
    assert counters
    assert (counters.values["drafts"], counters.missing) == (7, ())


def test_acceptance_is_told_by_position_and_summed_over_engines() -> None:
    lines = [
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",engine="0"} 5',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",engine="1"} 1',
        "vllm:spec_decode_num_drafts_total 10",
        "vllm:spec_decode_num_draft_tokens_total 20",
        "vllm:spec_decode_num_accepted_tokens_total 8",
    ]
    counters = parse(PAGE + "\n".join(lines))
    assert counters
    seen = acceptance(counters)
    assert (seen["length"], seen["rate"]) == pytest.approx((1.8, 0.4))
    assert seen["per_position"] == pytest.approx([0.6, 0.2])
    assert check(Counters({**GOOD, **counters.values, "prefix_hits": 0}), RECEIVED).facts["speculation"] == seen


def test_a_server_that_drafted_nothing_accepted_nothing() -> None:
    assert acceptance(Counters({**GOOD, "drafts": 0.0, "draft_tokens": 0.0})) == {}


@given(st.text(max_size=200))
def test_any_page_is_read_without_error(page: str) -> None:
    assert parse("vllm:num_preemptions 1\n" + page) is not None


def test_since() -> None:
    assert Counters({"a": 5.0, "b": 1.0}).since(Counters({"a": 2.0})).values == {"a": 3.0}


def test_a_good_window() -> None:
    result = check(Counters(GOOD), RECEIVED)
    assert result.broken == ()
    assert result.facts["server_tpot_s"] == pytest.approx(0.01)
    assert result.facts["client_tpot_s"] == pytest.approx(0.0101)


def test_rules() -> None:
    assert "32 tokens came from the prefix cache" in broken(prefix_hits=32.0)
    assert "2 requests were preempted" in broken(preemptions=2.0)
    assert "finished 5 requests (160 tokens) while this client received 4 (128)" in broken(
        tpot_count=5.0, tpot_sum=0.05, generation_tokens=160.0
    )
    assert "50% of their time in the server's queue" in broken(queue_sum=1.0)
    assert "went backwards" in broken(generation_tokens=-3.0)


@pytest.mark.parametrize(
    ("client_s", "said"), [(0.0102, ""), (0.0104, "the last tokens"), (0.0096, "the first tokens")]
)
def test_client_and_server_must_agree(client_s: float, said: str) -> None:
    reasons = broken(Received(4, 128, client_s, 2.0))
    assert said in reasons
    assert bool(reasons) == bool(said)
