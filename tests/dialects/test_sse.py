"""One event's fields. How a stream is cut into events is in tests/properties/test_streams.py."""

import pytest

from gateway.dialects.sse import EVENT_LIMIT_BYTES, EventSplitter, lines_apart, read_event


@pytest.mark.parametrize(
    ("event", "name", "data"),
    [
        (b"data: x\n\n", b"", b"x"),
        (b"data:x\n\n", b"", b"x"),
        (b"data: x\r\n\r\n", b"", b"x"),
        (b"data: x\r\r", b"", b"x"),
        (b"\xef\xbb\xbfdata: x\n\n", b"", b"x"),
        (b"\ndata: x\n\n", b"", b"x"),
        (b"event: error\ndata: x\n\n", b"error", b"x"),
        (b"id: 1\ndata: a\nretry: 5\ndata: b\n\n", b"", b"a\nb"),
        (b": ping\n\n", b"", None),
        (b"data\n\n", b"", b""),
        (b"datum: x\n\n", b"", None),
        (b"\n", b"", None),
        (b"data: x", b"", b"x"),
    ],
)
def test_an_events_name_and_data_are_read_as_the_standard_says(event: bytes, name: bytes, data: bytes | None) -> None:
    assert read_event(event) == (name, data)


def test_no_more_than_the_limit_is_kept_of_an_event_without_end() -> None:
    splitter = EventSplitter()
    passed = 0
    for _ in range(100):
        passed += sum(len(piece) for piece, is_whole in splitter.feed(b"x" * 5_000) if not is_whole)
        assert splitter.tail_bytes <= EVENT_LIMIT_BYTES
    assert passed >= 100 * 5_000 - EVENT_LIMIT_BYTES
    assert splitter.is_amid_oversize


@pytest.mark.parametrize(
    ("read", "lines"),
    [
        (b"data: 1\n\n", (b"1", 1)),
        (b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n", (b"1,2,[DONE]", 3)),
        (b"data: 1\n\ndata: 2", (b"1", 1)),
        (b"data: 1", None),
        (b"data:1\n\n", None),
        (b"data: 1\r\n\r\n", None),
        (b"data: 1\n\ndata: 2\r\n\r\n", None),
        (b"data: 1\n\n: ping\n\n", None),
        (b"event: a\ndata: 1\n\n", None),
        (b"data: 1\ndata: 2\n\n", None),
        (b"data: 1\n\n\n\n", None),
        (b"\n\n", None),
    ],
)
def test_events_of_one_line_each_are_given_at_once(read: bytes, lines: tuple[bytes, int] | None) -> None:
    found = EventSplitter().lines(read)
    assert (None if found is None else (b",".join(found[1]), len(found[1]))) == lines


def test_the_lines_of_a_read_go_on_from_the_one_before() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1") == []
    found = splitter.lines(b"2\n\ndata: 3\n\ndata: 4")
    assert found == (b"data: 12\n\ndata: 3\n\n", [b"12", b"3"])
    splitter.pass_lines(b"2\n\ndata: 3\n\ndata: 4")
    assert splitter.feed(b"\n\n") == [(b"data: 4\n\n", True)]


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        ([b"data: 1\n\n"], (b"", [b"1"])),
        ([b"data: 1\n\n", b"data: 22\n\n", b"data: [DONE]\n\n"], (b"", [b"1", b"22", b"[DONE]"])),
        ([b"event: a\ndata: 1\n\n", b"event: a\ndata: 2\n\n"], (b"a", [b"1", b"2"])),
        ([b"event:a\ndata: 1\n\n"], (b"a", [b"1"])),
        ([b"event: a\ndata: 1\n\n", b"event: b\ndata: 2\n\n"], (b"a", [b"1"])),
        ([b"data: 1\n\n", b"event: b\ndata: 2\n\n"], (b"", [b"1"])),
        ([b"data: 1\n\n", b"event: b\ndata: 2\n\n", b"data: 3\n\n"], None),
        ([b"id: 1\ndata: 1\n\n"], None),
        ([b"event: a\nid: 1\ndata: 1\n\n"], None),
        ([b"data: 1\n\ndata: 2\n\n"], None),
        ([b"data: 1", b"2\n\n"], None),
        ([b"data: 1\n\n", b"data: 2"], (b"", [b"1"])),
        ([b"data: 1\n\n", b"data: 2\n\ndata: [DONE]\n\n"], (b"", [b"1"])),
        ([b"data: 1\n\nda", b"ta: 2\n\n"], None),
        ([b"data: 0\n\n", b"data: 1\n\nda", b"ta: 2\n\n"], None),
        ([b"data: 1\n\n", b": ping\n\n"], (b"", [b"1"])),
        ([b": ping\n\n", b"data: 1\n\n"], None),
        ([b"data: 1\ndata: 2\n\n"], None),
        ([b"data: 1\ndata: 2\n", b"\n"], None),
        ([b"data: 1\n\n\n\n"], None),
        ([b"data: 1\r2\n\n"], None),
        ([b"data: 1\r\n\r\n"], None),
        ([b"data: 1\n\n\0data: 2", b"3\n\n"], None),
        ([b"data: 1\n\n", b"data: 2\n:\n", b"data: 3\n\n"], None),
        ([b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n:\n"], (b"", [b"1", b"2"])),
        ([b"data: 0\n\n", b"data: 1\n\n\0data: 2", b"3\n\n"], None),
        ([b"data: 0\n\n", b"data: 1\n\n\0data: 2\n\n"], (b"", [b"0"])),
        ([b"data: 1\n\n", b"data: 234"], (b"", [b"1"])),
        ([b"data: 0\n\n", b"data: 1\r2\n\n", b"data: 3\n\n"], None),
    ],
)
def test_reads_that_are_one_event_each_are_told_apart(reads: list[bytes], found: tuple[bytes, list[bytes]] | None) -> None:
    assert lines_apart(reads) == found
