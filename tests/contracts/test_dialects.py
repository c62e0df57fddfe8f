"""What every dialect promises. A new one joins with a line in the table and a sample here."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Dialect, ErrorFacts
from support.answers import cut, recorded, relay


@dataclass(frozen=True)
class Sample:
    """A body without cap and stream, the members that may hold its cap, and one recorded stream that ends in usage."""

    body: dict[str, object]
    caps: tuple[str, ...]
    stream: str
    usage: tuple[int, int]


SAMPLES = {
    "/v1/chat/completions": Sample(
        {"model": "tiny", "messages": [{"role": "user", "content": 'Say "hi" \n\t{[é中😀]}'}]},
        ("max_tokens", "max_completion_tokens"),
        "vllm_chat_usage.txt",
        (14, 4),
    ),
    "/v1/completions": Sample({"model": "tiny", "prompt": ["a", "b\\"]}, ("max_tokens",), "vllm_completions_usage.txt", (4, 4)),
}
EVERY = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
ERROR = ErrorFacts(429, "queue_full", "too \ud83d many", None, {"need_blocks": 9, "limit_blocks": 4})


def sample(dialect: Dialect) -> Sample:
    return SAMPLES[dialect.path]


def test_every_dialect_stands_under_its_own_path_and_has_a_sample() -> None:
    assert {path: dialect.path for path, dialect in DIALECTS.items()} == {path: path for path in SAMPLES}
    assert len({dialect.name for dialect in DIALECTS.values()}) == len(DIALECTS)


@EVERY
def test_its_sample_is_read(dialect: Dialect) -> None:
    request = dialect.read_request(json.dumps(sample(dialect).body).encode())
    assert (request.model, request.stream, request.cap, request.cap_tokens) == ("tiny", False, CapState.ABSENT, None)
    assert request.prompts
    assert request.affinity


@EVERY
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b"7",
        b'"x"',
        b"{}",
        b"{",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'{"model":"\xff"}',
        b'{"model":"\\ud83d"}',
        b'{"model":7}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"seed":' + b"9" * 5_000 + b"}",
        b'{"temperature":NaN}',
    ],
    ids=range(18),
)
def test_a_body_that_no_engine_serves_is_refused_in_a_short_printable_message(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        dialect.read_request(body)
    assert len(refusal.value.message) < 200
    assert refusal.value.message.isprintable()
    refusal.value.message.encode()


@EVERY
@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_no_body_ends_otherwise_than_read_or_refused(dialect: Dialect, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        dialect.read_request(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OTHER_KEY = st.text(max_size=5).map("x-".__add__)  # no member that a dialect reads, such as `n`


@EVERY
@settings(max_examples=150, deadline=None)
@given(extra=st.dictionaries(OTHER_KEY, JSON, max_size=4), cap=st.integers(1, 10**6), data=st.data())
def test_a_written_cap_is_all_that_changes(dialect: Dialect, extra: dict[str, object], cap: int, data: st.DataObject) -> None:
    caps = sample(dialect).caps
    present = data.draw(st.lists(st.sampled_from(caps), unique=True))
    body = {**extra, **sample(dialect).body, **dict.fromkeys(present)}
    shuffled = dict(data.draw(st.permutations(list(body.items()))))
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1]))
    written = json.dumps(shuffled, ensure_ascii=ascii_only, indent=indent).encode()
    edited = dialect.write_cap(written, cap)
    assert json.loads(edited) == body | dict.fromkeys(present or caps[:1], cap)
    request = dialect.read_request(edited)
    assert (request.cap, request.cap_tokens) == (CapState.SET, cap)


@EVERY
@settings(max_examples=150, deadline=None)
@given(extra=st.dictionaries(OTHER_KEY, JSON, max_size=4), data=st.data())
def test_asking_for_usage_is_all_that_changes(dialect: Dialect, extra: dict[str, object], data: st.DataObject) -> None:
    options = data.draw(
        st.sampled_from(["absent", None, {}, {"include_usage": False}, {"include_usage": None, "chunk": [1, {"a": "}"}]}])
    )
    body = {**extra, **sample(dialect).body, "stream": True} | ({} if options == "absent" else {"stream_options": options})
    shuffled = dict(data.draw(st.permutations(list(body.items()))))
    written = json.dumps(shuffled, ensure_ascii=data.draw(st.booleans())).encode()
    assert not dialect.read_request(written).wants_usage
    edited = dialect.ask_usage(written)
    kept = options if isinstance(options, dict) else {}
    assert json.loads(edited) == body | {"stream_options": {**kept, "include_usage": True}}
    assert dialect.read_request(edited).wants_usage


@EVERY
@pytest.mark.parametrize("hide_usage", [False, True])
def test_its_watcher_finds_usage_and_end_in_a_recorded_stream(dialect: Dialect, hide_usage: bool) -> None:
    stream = recorded(sample(dialect).stream)
    watcher = dialect.watcher(is_event_stream=True, hide_usage=hide_usage, content_encoding=None)
    assert watcher.usage_missing
    assert not watcher.is_complete
    assert watcher.at_boundary
    shown = relay(watcher, cut(stream, range(100, len(stream), 100)))
    assert watcher.usage is not None
    assert (watcher.usage.prompt_tokens, watcher.usage.output_tokens) == sample(dialect).usage
    assert (watcher.is_complete, watcher.has_error, watcher.usage_missing) == (True, False, False)
    assert watcher.token_events > 0
    assert (shown == stream) is not hide_usage


@EVERY
def test_its_watcher_gives_back_the_very_bytes_that_it_was_fed(dialect: Dialect) -> None:
    for is_event_stream, encoding in [(True, None), (False, None), (True, "gzip"), (False, "br"), (True, "identity")]:
        watcher = dialect.watcher(is_event_stream=is_event_stream, hide_usage=False, content_encoding=encoding)
        data = b"data: half an eve"
        assert watcher.feed(data) is data
        assert watcher.finish() == b""


@EVERY
def test_an_event_of_ours_can_follow_only_whole_events(dialect: Dialect) -> None:
    watcher = dialect.watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
    watcher.feed(b'data: {"a":1}\n')
    assert not watcher.at_boundary
    watcher.feed(b"\n")
    assert watcher.at_boundary


@EVERY
def test_a_watcher_of_a_plain_answer_doubts_no_clean_end(dialect: Dialect) -> None:
    watcher = dialect.watcher(is_event_stream=False, hide_usage=False, content_encoding=None)
    relay(watcher, [b"<html>Bad Gateway</html>"])
    assert watcher.is_complete
    assert watcher.usage_missing


@EVERY
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 502, 503, 504])
def test_its_error_body_is_strict_json_that_no_message_can_break(dialect: Dialect, status: int) -> None:
    error = ErrorFacts(status, "queue_full", 'a "\ud83d" \n' + "x" * 100_000, "n", {"need_blocks": 9})
    body = dialect.error_body(error)
    assert len(body) < 10_000

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(body.decode("ascii"), parse_constant=refuse)["error"]["need_blocks"] == 9


@EVERY
def test_its_error_event_is_whole_and_its_own_watcher_knows_it(dialect: Dialect) -> None:
    event = dialect.error_event(ERROR)
    assert event.endswith(b"\n\n")
    watcher = dialect.watcher(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert watcher.feed(event) is event
    assert watcher.has_error
    assert watcher.at_boundary
