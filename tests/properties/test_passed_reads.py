"""What a watcher is told of many reads at once it knows as if it had been fed one after the other."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.dialect import Dialect, Watcher, feed_each
from gateway.dialects.sse import EventSplitter, lines_apart, read_event
from support.answers import recorded, seen, streams
from support.dialect_samples import STREAMING, dialect_of

DELTAS = [
    *(b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{%b},"finish_reason":null}]}\n\n' % delta
      for delta in (b'"content":"a"', b'"content":"\\u00e9\\n\xc3\xa9"', b'"content":""', b'"role":"assistant"', b'"content":7',
                    b'"reasoning":"x","reasoning_content":"x"', b'"tool_calls":[{"function":{"arguments":"{"}}]')),
    *(b'data: {"choices":[{"index":%d,"text":"ab","finish_reason":%b}]}\n\n' % (index, reason)
      for index in (0, 1) for reason in (b"null", b'"length"', b'"stop"')),
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    *(b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{%b}}\n\n' % delta
      for delta in (b'"type":"text_delta","text":"a"', b'"thinking":"\\n"', b'"partial_json":"{\\"a"', b'"text":7')),
    b'event: m\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":2}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a","sequence_number":4}\n\n',
    b'event: r\ndata: {"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":2}}}\n\n',
    b'data: {"index":0,"content":"a","stop":false}\n\n',
    b'data: {"index":0,"content":"","stop":true,"stop_type":"limit"}\n\n',
]  # fmt: skip
ODD = [
    b"data: [DONE]\n\n",
    b"data:  [DONE]\n\n",
    b"data:[DONE]\n\n",
    b'data: {"error":{"message":"no"}}\n\n',
    b'event: error\ndata: {"type":"error","error":{"message":"no"}}\n\n',
    b'event:error\ndata: {"type":"ping"}\n\n',
    b": ping\n\n",
    b"event: ping\n\n",
    b"\n",
    b"\n\n",
    b"\r",
    b"\r\n\r\n",
    b"\0",
    b"data: 1\n\n\0data: 2",
    b"data: 1\0\n\n",
    b"\xef\xbb\xbfdata: 1\n\n",
    b'data: {"a":\n1}\n\n',
    b'data: {"a":1}\ndata: 2\n\n',
    b'data: {"a":1}\ni',
    b'data: {"choices":[1\n\n',
    b'data: 2]},{"choices":[]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a"}}]}\x0c\n\n',
    b'data: {"choices":[{"text":"\xff"}]}\n\n',
    b"event: data: x\ndata: {}\n\n",
    b"event: a\nid: 4\ndata: {}\n\n",
]
RECORDED = {dialect: [recorded(name) for name in streams() if dialect_of(name) is dialect] for dialect in STREAMING}


def events_of(stream: bytes) -> list[bytes]:
    return [piece for piece, _ in EventSplitter().feed(stream)]


@st.composite
def reads_of(draw: st.DrawFn, dialect: Dialect) -> list[bytes]:
    """As engines send them, one event a read, or cut anywhere, and with all sorts between."""
    known = [event for stream in RECORDED[dialect] for event in events_of(stream)]
    event = st.one_of(st.sampled_from(known), st.sampled_from(DELTAS), st.sampled_from(ODD))
    runs = draw(st.lists(st.tuples(event, st.integers(1, 5)), min_size=1, max_size=10))
    reads = [event for event, times in runs for _ in range(times)]
    if draw(st.booleans()):
        text = b"".join(reads)
        edges = draw(st.lists(st.integers(0, len(text)), max_size=12))
        reads = [text[start:end] for start, end in pairwise(sorted({0, len(text), *edges}))]
    return reads


def watch(dialect: Dialect, *, hide_usage: bool) -> Watcher:
    return dialect.watcher(is_event_stream=True, hide_usage=hide_usage, content_encoding=None)


@pytest.mark.parametrize("hide_usage", [False, True])
@pytest.mark.parametrize("dialect", STREAMING, ids=lambda dialect: dialect.name)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_many_reads_at_once_tell_what_they_tell_one_by_one(dialect: Dialect, hide_usage: bool, data: st.DataObject) -> None:
    reads = data.draw(reads_of(dialect))
    most = data.draw(st.integers(1, 33))
    at_once, one_by_one = watch(dialect, hide_usage=hide_usage), watch(dialect, hide_usage=hide_usage)
    passed: list[bytes] = []

    def look() -> None:
        if passed:
            assert at_once.feed_passed(passed) == feed_each(one_by_one, passed)
            assert seen(at_once) == seen(one_by_one)
            passed.clear()

    for read in reads:
        if at_once.passes(read):
            passed.append(read)
        else:
            look()
            assert at_once.feed(read) == one_by_one.feed(read)
        if len(passed) >= most:
            look()
    look()
    assert at_once.finish() == one_by_one.finish()
    assert seen(at_once) == seen(one_by_one)


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_reads_are_lines_apart_only_if_each_is_an_event_with_that_data(data: st.DataObject) -> None:
    some = st.one_of(st.sampled_from(ODD), st.sampled_from(DELTAS), st.sampled_from([b"data: 1\n\n", b"event: a\ndata: 2\n\n"]))
    reads = data.draw(st.lists(st.lists(some, min_size=1, max_size=2).map(b"".join), min_size=1, max_size=4))
    found = lines_apart(reads)
    if found is None:
        return
    name, lines = found
    splitter = EventSplitter()
    assert len(lines) in (len(reads), len(reads) - 1)
    for read, line in zip(reads, lines, strict=False):
        assert splitter.feed(read) == [(read, True)]
        assert read_event(read) == (name, line.strip())
