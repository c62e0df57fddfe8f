"""Every recorded stream, cut at any byte, tells the same and is relayed the same."""

import random
import zlib
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.openai_watcher import watch
from gateway.dialects.sse import EVENT_LIMIT_BYTES, EventSplitter
from support.answers import cut, recorded, relay, seen, streams
from support.dialect_samples import dialect_of, sample_of, watch_as


def is_usage_event(event: bytes) -> bool:
    return b'"usage"' in event and (b'"choices":[]' in event or b'"choices": []' in event)


def without_usage_event(stream: bytes) -> bytes:
    """The stream less its usage events, taken apart in another way than the splitter's."""
    end = b"\r\n\r\n" if b"\r\n" in stream else b"\r\r" if b"\r" in stream else b"\n\n"
    return end.join(event for event in stream.split(end) if not is_usage_event(event))


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("name", streams())
def test_a_stream_cut_at_any_byte_tells_the_same(name: str, hide_usage: bool) -> None:
    stream = recorded(name)
    whole = watch_as(name, is_event_stream=True, hide_usage=hide_usage)
    shown = relay(whole, [stream])
    is_hidden = hide_usage and sample_of(dialect_of(name)).asks_usage
    assert shown == (without_usage_event(stream) if is_hidden else stream)
    for position in range(1, len(stream)):
        parted = watch_as(name, is_event_stream=True, hide_usage=hide_usage)
        assert relay(parted, cut(stream, [position])) == shown
        assert seen(parted) == seen(whole)


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("name", streams())
def test_a_stream_that_comes_byte_by_byte_tells_the_same(name: str, hide_usage: bool) -> None:
    stream = recorded(name)
    whole = watch_as(name, is_event_stream=True, hide_usage=hide_usage)
    parted = watch_as(name, is_event_stream=True, hide_usage=hide_usage)
    assert relay(parted, cut(stream, range(1, len(stream)))) == relay(whole, [stream])
    assert seen(parted) == seen(whole)


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_a_short_stream_cut_at_any_two_bytes_hides_its_usage_event_and_nothing_else(line_end: bytes, hide_usage: bool) -> None:
    first = b'data: {"choices":[{"finish_reason":"length"}]}' + 2 * line_end
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}' + 2 * line_end
    last = b"data: [DONE]" + 2 * line_end
    for positions in combinations(range(1, len(first + usage + last)), 2):
        watcher = watch(is_event_stream=True, hide_usage=hide_usage, content_encoding=None)
        assert relay(watcher, cut(first + usage + last, positions)) == first + (b"" if hide_usage else usage) + last
        assert (watcher.is_complete, watcher.hit_cap, watcher.usage_missing) == (True, True, False)


@pytest.mark.parametrize("hide_usage", [False, True])
def test_a_second_line_of_an_event_is_never_dropped_where_a_read_ends_within_it(hide_usage: bool) -> None:
    stream = b'data: {"choices":[{"index":0,"text":"a"}]}\ndata: {"id":2}\n\n'
    for position in range(1, len(stream)):
        watcher = watch(is_event_stream=True, hide_usage=hide_usage, content_encoding=None)
        assert relay(watcher, cut(stream, [position])) == stream
        assert watcher.token_events == 0  # both lines are the event's data, and no JSON


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.sampled_from([b"data: a", b"data:", b": c", b"event: x", b"", b"\xff\x00", b'data: {"choices":[]}'])),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1),
    seed=st.integers(0, 1_000),
)
def test_any_lines_come_back_whole_and_in_the_same_events(lines: list[bytes], ends: list[bytes], seed: int) -> None:
    stream = b"".join(line + ends[index % len(ends)] for index, line in enumerate(lines))
    dice = random.Random(seed)
    positions = sorted(dice.sample(range(len(stream) + 1), k=min(len(stream), dice.randint(0, 6))))
    parted, whole = EventSplitter(), EventSplitter()
    pieces = [piece for data in cut(stream, positions) for piece in parted.feed(data)]
    assert pieces == whole.feed(stream)
    assert parted.finish() == (rest := whole.finish())
    assert b"".join(piece for piece, _ in pieces) + rest[0] == stream


@settings(max_examples=50, deadline=None)
@given(body=st.binary(max_size=300), positions=st.lists(st.integers(0, 300), max_size=5), is_event_stream=st.booleans())
def test_no_bytes_make_a_watcher_raise(body: bytes, positions: list[int], is_event_stream: bool) -> None:
    for encoding in (None, "gzip", "deflate", "br"):
        watcher = watch(is_event_stream=is_event_stream, hide_usage=False, content_encoding=encoding)
        assert relay(watcher, cut(body, [position for position in positions if position <= len(body)])) == body
        assert watcher.usage_missing


@pytest.mark.parametrize("window", [31, 15, -15], ids=["gzip", "deflate", "bare deflate"])
@pytest.mark.parametrize("name", ["vllm_chat_usage.txt", "vllm_chat_engine_died.txt"])
def test_a_compressed_stream_cut_anywhere_is_read_and_passes_untouched(name: str, window: int) -> None:
    stream = recorded(name)
    squeeze = zlib.compressobj(wbits=window)
    packed = squeeze.compress(stream) + squeeze.flush()
    encoding = "gzip" if window == 31 else "deflate"
    plain = watch(is_event_stream=True, hide_usage=False, content_encoding=None)
    relay(plain, [stream])
    for position in range(1, len(packed)):
        watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=encoding)
        assert relay(watcher, cut(packed, [position])) == packed
        assert seen(watcher)[:-1] == seen(plain)[:-1]


@pytest.mark.parametrize("step", [1_000, 40_000, 300_000])
def test_an_event_beyond_the_limit_passes_and_what_follows_is_seen(step: int) -> None:
    large = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * (3 * EVENT_LIMIT_BYTES) + b'"}}]}\n\n'
    stream = large + recorded("vllm_chat_usage.txt")
    watcher = watch(is_event_stream=True, hide_usage=True, content_encoding=None)
    shown = b"".join(watcher.feed(piece) for piece in cut(stream, range(step, len(stream), step)))
    assert shown + watcher.finish() == large + without_usage_event(recorded("vllm_chat_usage.txt"))
    assert watcher.usage is not None
    assert watcher.is_complete
