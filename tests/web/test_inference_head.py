"""What follows from a head is worked out once, and is what it would be for each request by itself."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.names import BackendName
from gateway.dialects import DIALECTS
from gateway.relay.headers import CREDENTIALS, Header
from gateway.relay.upstream_pool import UpstreamPool
from gateway.relay.upstream_request import write_request
from gateway.web.asked import LANE
from gateway.web.inference_head import InferenceHead
from gateway.web.trace_context import TraceContext
from gateway.web.upstream import Upstream

CHAT: Final = DIALECTS["/v1/chat/completions"]
KEYS: Final[list[Header]] = [(b"authorization", b"Bearer theirs"), (b"x-api-key", b"theirs")]
FIELDS: Final[list[Header]] = [
    (b"host", b"gateway:8700"),
    (b"content-type", b"application/json"),
    (b"content-length", b"5"),
    (b"accept-encoding", b"gzip"),
    (b"connection", b"keep-alive, X-Drop, authorization"),
    (b"connection", b"keep-alive"),
    (b"x-drop", b"this hop only"),
    (b"x-kvgate-lane", b"batch"),
    (b"x-data-parallel-rank", b"7"),
    (b"cookie", b"a=1"),
    (b"cookie", b"b=2"),
    *KEYS,
]


class Wire(UpstreamPool):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__("engine", 1, backend=BackendName("a"))
        self.sent: list[bytes] = []

    async def send(self, method: bytes, target: bytes, headers: object, body: bytes) -> None:  # type: ignore[override]
        self.sent.append(b"".join(write_request(method, target, headers, body).buffers))  # type: ignore[arg-type]


def run(sending: object) -> None:
    with pytest.raises(StopIteration):
        sending.send(None)  # type: ignore[attr-defined]


@given(
    headers=st.lists(st.sampled_from(FIELDS), max_size=12),
    query=st.sampled_from([b"", b"beta=true"]),
    bearer=st.sampled_from([None, "ours"]),
    pinned=st.sampled_from([(), ((b"X-data-parallel-rank", b"1"),)]),
    key_was_ours=st.booleans(),
    bodies=st.lists(st.sampled_from([b"{}", b"[1, 2]", b""]), min_size=1, max_size=3),
)
def test_a_call_goes_on_as_any_request_would(
    headers: list[Header],
    query: bytes,
    bearer: str | None,
    pinned: tuple[Header, ...],
    key_was_ours: bool,
    bodies: list[bytes],
) -> None:
    wire = Wire()
    upstream = Upstream(wire, host=b"engine:8000", base_path=b"/base", bearer=bearer, pinned=pinned)
    head = InferenceHead(CHAT, query, headers)
    for body in bodies:
        wire.sent.append(b"".join(upstream.call(head, body, key_was_ours=key_was_ours).buffers))
        run(upstream.send(b"POST", CHAT.path.encode(), query, headers, body, key_was_ours=key_was_ours))
    calls, requests = wire.sent[::2], wire.sent[1::2]
    assert calls == requests


def test_one_head_goes_on_to_several_backends_each_under_its_own_name_and_with_its_own_key() -> None:
    head = InferenceHead(CHAT, b"", [FIELDS[0], KEYS[0]])
    wire = Wire()
    ways = [
        (Upstream(wire, host=b"one", base_path=b"", bearer="first"), True),
        (Upstream(wire, host=b"two", base_path=b"/two", bearer="second"), True),
        (Upstream(wire, host=b"one", base_path=b"", bearer="first"), False),
        (Upstream(wire, host=b"two", base_path=b"", bearer=None, pinned=((b"cookie", b"c"),)), True),
    ]
    for upstream, key_was_ours in ways:
        wire.sent.append(b"".join(upstream.call(head, b"", key_was_ours=key_was_ours).buffers))
    told = [[line for line in sent.split(b"\r\n") if line.startswith((b"host", b"auth", b"cookie"))] for sent in wire.sent]
    assert told == [
        [b"host: one", b"authorization: Bearer first"],
        [b"host: two", b"authorization: Bearer second"],
        [b"host: one", b"authorization: Bearer theirs"],
        [b"host: two", b"cookie: c"],
    ]


def test_the_lines_of_a_head_are_made_once() -> None:
    head = InferenceHead(CHAT, b"", FIELDS)
    assert head.onward_lines(frozenset()) is head.onward_lines(frozenset())
    assert b"theirs" in head.onward_lines(frozenset())
    assert b"theirs" not in head.onward_lines(CREDENTIALS)


def test_a_header_that_breaks_out_of_its_line_is_refused_each_time() -> None:
    head = InferenceHead(CHAT, b"", [(b"x-a", b"1\r\nx-b: 2")])
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            head.onward_lines(frozenset())


def test_a_head_says_what_it_asks_whose_it_is_and_what_it_belongs_to() -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    asked: list[Header] = [
        (LANE, b"batch"),
        (b"x-stainless-timeout", b"10"),
        (b"traceparent", f"00-{trace}-{parent}-01".encode()),
    ]
    head = InferenceHead(CHAT, b"beta=true", [*asked, *KEYS])
    assert (head.target, head.asked[LANE], head.patience_s) == (b"/v1/chat/completions?beta=true", b"batch", 9.5)
    assert (head.trace, head.credentials) == (TraceContext(trace, parent), KEYS)
    plain = InferenceHead(CHAT, b"", FIELDS[:3])
    assert (plain.target, plain.asked, plain.patience_s, plain.trace) == (b"/v1/chat/completions", {}, None, None)
    assert plain.credentials == []
