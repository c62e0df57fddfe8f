"""What every dialect promises. A new one joins with a row in `support.dialect_samples`."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.request import CapState
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Dialect, ErrorFacts
from gateway.tokens.bound import prompt_bound
from support.answers import cut, recorded, relay
from support.dialect_samples import ALL, SAMPLES, STREAMING, dialect_of, plain_answers, requests, sample_of, watch_as

EVERY = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
EVERY_STREAMING = pytest.mark.parametrize("dialect", STREAMING, ids=lambda dialect: dialect.name)
ERROR = ErrorFacts(429, "queue_full", "too \ud83d many", None, {"need_blocks": 9, "limit_blocks": 4})


def test_every_dialect_stands_under_its_own_path_and_has_a_sample() -> None:
    assert {path: dialect.path for path, dialect in DIALECTS.items()} == {path: path for path in SAMPLES}
    assert len({dialect.name for dialect in ALL}) == len(DIALECTS)


@EVERY
def test_its_sample_is_read(dialect: Dialect) -> None:
    sample = sample_of(dialect)
    request = dialect.read_request(json.dumps(sample.body).encode())
    assert (request.model, request.stream, (request.cap, request.cap_tokens)) == ("tiny", False, sample.cap)
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
    sample = sample_of(dialect)
    present = data.draw(st.lists(st.sampled_from(sample.caps), unique=True)) if sample.caps else []
    body = {**extra, **sample.body, **dict.fromkeys(present, sample.unset)}
    shuffled = dict(data.draw(st.permutations(list(body.items()))))
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1]))
    written = json.dumps(shuffled, ensure_ascii=ascii_only, indent=indent).encode()
    edited = dialect.write_cap(written, cap)
    if not sample.caps:
        assert edited is written, "there is no output to cap"
        return
    standing = [name for name in sample.caps if name in body]
    assert json.loads(edited) == body | dict.fromkeys(standing or sample.caps[:1], cap)
    request = dialect.read_request(edited)
    assert (request.cap, request.cap_tokens) == (CapState.SET, cap)


@EVERY_STREAMING
@settings(max_examples=150, deadline=None)
@given(extra=st.dictionaries(OTHER_KEY, JSON, max_size=4), data=st.data())
def test_asking_for_usage_is_all_that_changes(dialect: Dialect, extra: dict[str, object], data: st.DataObject) -> None:
    options = data.draw(
        st.sampled_from(["absent", None, {}, {"include_usage": False}, {"include_usage": None, "chunk": [1, {"a": "}"}]}])
    )
    sample = sample_of(dialect)
    body = {**extra, **sample.body, "stream": True}
    if sample.asks_usage and options != "absent":
        body["stream_options"] = options
    shuffled = dict(data.draw(st.permutations(list(body.items()))))
    written = json.dumps(shuffled, ensure_ascii=data.draw(st.booleans())).encode()
    request = dialect.read_request(written)
    assert not request.wants_usage
    edited = dialect.ask_usage(written, request)
    if not sample.asks_usage:
        assert edited is written, "its usage comes unasked"
        return
    kept = options if isinstance(options, dict) else {}
    assert json.loads(edited) == body | {"stream_options": {**kept, "include_usage": True}}
    assert dialect.read_request(edited).wants_usage


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("name", [name for dialect in STREAMING for name in sample_of(dialect).stream])
def test_its_watcher_finds_usage_and_end_in_a_recorded_stream(name: str, hide_usage: bool) -> None:
    stream, sample = recorded(name), sample_of(dialect_of(name))
    watcher = watch_as(name, is_event_stream=True, hide_usage=hide_usage)
    assert watcher.usage_missing
    assert not watcher.is_complete
    assert watcher.at_boundary
    shown = relay(watcher, cut(stream, range(100, len(stream), 100)))
    assert watcher.usage is not None
    assert (watcher.usage.prompt_tokens, watcher.usage.output_tokens) == sample.stream[name]
    assert (watcher.is_complete, watcher.has_error, watcher.usage_missing) == (True, False, False)
    assert watcher.token_events > 0
    assert watcher.text_bytes > 0
    assert (shown == stream) is not (hide_usage and sample.asks_usage)


@pytest.mark.parametrize("name", [name for dialect in ALL for name in sample_of(dialect).plain])
def test_its_watcher_finds_usage_in_a_recorded_plain_answer(name: str) -> None:
    answer = recorded(name)
    watcher = watch_as(name, is_event_stream=False, hide_usage=False)
    assert relay(watcher, cut(answer, range(100, len(answer), 100))) == answer
    assert watcher.usage is not None
    assert (watcher.usage.prompt_tokens, watcher.usage.output_tokens) == sample_of(dialect_of(name)).plain[name]
    assert (watcher.is_complete, watcher.has_error) == (True, False)


def test_every_dialect_has_recorded_answers_of_a_real_engine() -> None:
    for dialect in ALL:
        assert sample_of(dialect).plain
    assert {dialect_of(name).path for name in plain_answers()} == set(SAMPLES)


@pytest.mark.parametrize("name", requests())
def test_a_recorded_exchange_stays_within_what_was_read_of_its_request(name: str) -> None:
    """The engine's own usage is the judge: no prompt longer than its bound, no output beyond the cap."""
    request = dialect_of(name).read_request(recorded(name))
    stem = name.removesuffix(".request.json")
    answer = f"{stem}.txt" if request.stream else f"{stem}.json"
    watcher = watch_as(answer, is_event_stream=request.stream, hide_usage=False)
    relay(watcher, [recorded(answer)])
    if stem.endswith("_refused"):
        assert watcher.has_error or not request.stream, "an engine's refusal passes for an answer"
        return
    assert watcher.is_complete
    assert not watcher.has_error
    if watcher.usage is None:
        assert sample_of(dialect_of(name)).asks_usage
        assert not request.wants_usage
        return
    bounds = [prompt_bound(prompt) for prompt in request.prompts]
    assert sum(bound for bound in bounds if bound is not None) >= watcher.usage.prompt_tokens or None in bounds
    if request.cap_tokens is not None:
        assert watcher.usage.output_tokens <= request.cap_tokens * len(request.prompts) * max(request.n, request.best_of)


@EVERY
def test_its_watcher_gives_back_the_very_bytes_that_it_was_fed(dialect: Dialect) -> None:
    for is_event_stream, encoding in [(True, None), (False, None), (True, "gzip"), (False, "br"), (True, "identity")]:
        watcher = dialect.watcher(is_event_stream=is_event_stream, hide_usage=False, content_encoding=encoding)
        data = b"data: half an eve"
        assert watcher.feed(data) is data
        assert watcher.finish() == b""


@EVERY_STREAMING
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


@EVERY_STREAMING
def test_its_error_event_is_whole_and_its_own_watcher_knows_it(dialect: Dialect) -> None:
    event = dialect.error_event(ERROR)
    assert event.endswith(b"\n\n")
    watcher = dialect.watcher(is_event_stream=True, hide_usage=True, content_encoding=None)
    assert watcher.feed(event) is event
    assert watcher.has_error
    assert watcher.at_boundary
