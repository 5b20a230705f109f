from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable

import pytest
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.client.endpoint import base_url
from pytest_decodegate.errors import BadInput
from pytest_decodegate.redaction import REDACTED, is_secret_name, redact_arguments, redact_text, redact_value
from pytest_decodegate.reference.loaded import Loaded, variable_differences, without_effect
from pytest_decodegate.settings import values
from pytest_decodegate.settings.stack import Stack, parse_stack

SECRET_WORDS = (
    *(
        "key",
        "keys",
        "apikey",
        "token",
        "tokens",
        "hftoken",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "pass",
        "pwd",
    ),
    *("credential", "credentials", "creds", "auth", "oauth", "authorization", "jwt", "pat", "cookie", "dsn", "sig"),
    *("signature", "bearer"),
)
words = st.sampled_from(["vllm", "hf", "db", "s3", "my", "registry", "ssl", "x", "2"])
cases = st.sampled_from([str.upper, str.lower, str.title])


@st.composite
def secret_names(draw: st.DrawFn, separators: str = "_-.") -> str:
    """HF_TOKEN, --ssl-keyfile-password, vllm.Db.Pass ..."""
    parts = [
        *draw(st.lists(words, max_size=2)),
        draw(st.sampled_from(SECRET_WORDS)),
        *draw(st.lists(words, max_size=1)),
    ]
    case, separator = draw(cases), draw(st.sampled_from(separators))
    return separator.join(map(case, parts)).lstrip("2-_.") or "key"


# No secret is so short that it may be found in the text around it.
plain = st.text("abcdefghijkmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!$%*+/=_~-", min_size=6, max_size=60).map(
    lambda text: f"q{text}Q"
)


@given(
    secret_names(),
    st.text(min_size=1).filter(lambda text: text.strip().lower() not in ("", "none", "null", "true", "false")),
)
def test_no_value_under_a_name_of_a_secret_is_kept(name: str, value: str) -> None:
    if not re.fullmatch(r"[0-9][0-9\s.,()\[\]+-]*", value):
        assert redact_value(name, value) == REDACTED


@given(
    secret_names("_-"),
    plain,
    st.sampled_from(["{n}={v}", "env:{n}={v},nccl=/x", '"{n}": "{v}"', "'{n}': ['{v}']", "--{n} {v}", "--{n}={v}"]),
)
def test_no_secret_is_left_in_a_text_that_names_it(name: str, value: str, shape: str) -> None:
    text = redact_text(f"before {shape.format(n=name, v=value)} after")
    assert value not in text
    assert text.startswith("before ")


@given(secret_names("_-"), st.lists(plain, min_size=1, max_size=3), st.booleans())
def test_no_secret_is_left_in_a_command_line(name: str, values: list[str], joined: bool) -> None:
    given_ = [f"--{name}={values[0]}"] if joined else [f"--{name}", *values]
    found = redact_arguments(["serve", "--model", "m", *given_, "--max-num-seqs", "64"])
    assert found[:3] == ["serve", "--model", "m"]
    assert found[-2:] == ["--max-num-seqs", "64"]
    assert not any(value in word for value in values for word in found)


@given(
    plain.map(lambda text: text.replace("/", "")),
    st.sampled_from(["https://{}@h/p", "http://u:{}@h:80", "redis://:{}@h/0", "see git+ssh://a:{}@h.git x"]),
)
def test_no_user_of_a_url_is_kept(secret: str, shape: str) -> None:
    text = redact_text(shape.format(secret))
    assert secret not in text
    assert "@h" in text


@given(
    st.sampled_from(
        [
            "X-Amz-Signature",
            "X-Amz-Credential",
            "X-Amz-Security-Token",
            "sig",
            "X-Goog-Signature",
            "access_token",
            "token",
            "api_key",
        ]
    ),
    plain,
)
def test_no_signature_of_a_query_is_kept(name: str, secret: str) -> None:
    text = redact_text(f"https://bucket/weights?part=1&{name}={secret}&Expires=9")
    assert secret not in text
    assert text.startswith("https://bucket/weights?part=1&")
    assert text.endswith("&Expires=9")


@given(
    plain,
    st.sampled_from(
        [
            "Authorization: Bearer {}",
            "bearer {}",
            "Authorization: Basic {}",
            "X-API-Key: {}",
            "Set-Cookie: a={}; Path=/",
        ]
    ),
)
def test_no_header_is_kept(secret: str, shape: str) -> None:
    assert secret not in redact_text(f"sent\n{shape.format(secret)}\nanswered")
    assert redact_text(f"sent\n{shape.format(secret)}\nanswered").endswith("\nanswered")


@given(st.binary(min_size=12, max_size=40), st.binary(min_size=12, max_size=40))
def test_a_jwt_is_known_by_its_shape(payload: bytes, signature: bytes) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"}).encode()).rstrip(b"=").decode()
    rest = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (payload, signature)]
    assert redact_text(f"sent ({'.'.join([head, *rest])})") == f"sent ({REDACTED})"


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "aB3" * 10,
        "ghp_" + "aB3" * 12,
        "github_pat_" + "aB3" * 12,
        "glpat-" + "aB3" * 7,
        "sk-proj-" + "aB3" * 12,
        "nvapi-" + "aB3" * 12,
        "AKIA" + "ABCD" * 4,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_keys_of_known_issuers_are_known_by_their_shape(secret: str) -> None:
    assert redact_text(f"it said {secret} and ended") == f"it said {REDACTED} and ended"


@pytest.mark.parametrize(
    "text",
    [
        "allreduce[world=8,bytes=14336,dtype=bf16]: REGRESSED: +3.1 % [+2.0 %, +4.2 %]",
        "marlin_moe[m=8,tokens=8,k=7168]",
        "max_num_batched_tokens=8192, num_prompt_tokens=None, tokens=[1, 2], token_ids=[3, 4]",
        "--max-num-batched-tokens 8192 --tokenizer /models/kimi --tokenizer-mode auto --ssl-keyfile /etc/key.pem",
        "--long-prefill-token-threshold 4",
        "put it in an environment variable and name that with --perf-server-key-env MY_NAME",
        "http://127.0.0.1:8000/v1 answers HTTP 401: it wants an API key; put it somewhere",
        "rank 1 of w2-3 (pid 4711) died (SIGKILL) in work()",
        "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE=163840 NCCL_ALGO=Ring",
        "mail to someone@example.org",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert redact_text(text) == text
    assert redact_arguments(text.split()) == text.split()


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_TOKENIZER",
        "COMPASS",
        "AUTHOR",
        "NCCL_ALGO",
        "SSL_KEYFILE",
        "DISPATCH",
        "BYPASS",
        "compilation-config.pass_config",
        "--compilation-config.pass_config",
        "pass-config",
        "--speculative-token-tree",
        "speculative_config.speculative_token_tree",
    ],
)
def test_names_that_only_look_like_secrets_are_none(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["DB_PASS_CONFIG", "db-pass-config", "pass_config.password", "pass-config-key", "token_tree", "pass"]
)
def test_what_resembles_a_setting_of_vllm_is_a_secret_all_the_same(name: str) -> None:
    assert redact_value(name, "mine") == REDACTED


@given(st.text(max_size=200))
def test_redacting_twice_changes_nothing(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)


@pytest.mark.parametrize(
    "piece",
    [
        "a=[",
        'a="',
        "://",
        "://a:",
        "--key ",
        "eyJ",
        "eyJa.",
        "Bearer ",
        "&key=",
        "-----BEGIN PRIVATE KEY-----",
        "a.",
        "hf_",
        " ",
        "\n",
        "a",
        "cookie:",
    ],
)
def test_the_time_grows_with_the_text_and_not_with_its_square(piece: str) -> None:
    assert_linear(redact_text, piece)


def test_no_error_of_ours_shows_a_secret() -> None:
    assert str(BadInput("server URL 'http://me:word@host' is not usable")) == (
        f"server URL 'http://{REDACTED}@host' is not usable"
    )


@pytest.mark.parametrize("read", [base_url, values.url])
@pytest.mark.parametrize("text", ["http://me:word@host:8000", "https://word@host/v1"])
def test_a_server_url_with_a_user_is_refused_and_not_quoted(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(BadInput, match=r"holds a user or a password.*--perf-server-key-env") as caught:
        read(text)

    assert "word@" not in str(caught.value)


def test_a_stack_that_cannot_be_read_shows_no_secret() -> None:
    for texts in (["env:HF_TOKEN=hf-mine", "env:HF_TOKEN=hf-other"], ["nonsense,env:HF_TOKEN=hf-mine"]):
        with pytest.raises(BadInput) as caught:
            parse_stack(texts, "--perf-candidate")

        assert "hf-" not in str(caught.value)


def test_what_stacks_set_is_compared_as_it_is_and_shown_redacted() -> None:
    base, candidate = (Loaded({}, {"HF_TOKEN": value}) for value in ("hf-mine", "hf-other"))
    (difference,) = variable_differences(base, candidate)
    assert str(difference) == "env:HF_TOKEN: redacted -> redacted"
    assert not variable_differences(base, base)
    stacks = Stack(env=(("HF_TOKEN", "hf-other"),)), Stack(env=(("HF_TOKEN", "hf-mine"),))
    (unused,) = without_effect(stacks, (base, base))
    assert "hf-" not in unused
