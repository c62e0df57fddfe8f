"""What is asked and what is answered, to the byte: the engine and the clients of this benchmark agree on it here.

So a client can tell a whole answer from one that was cut, and one that was passed on from one that was written anew.
How a stream shall go is said in the prompt's text, because some proxies drop headers and members that they do not know:
`[[chunks=128 gap_ms=20 stamped=1]]`.
"""

import json
import re
import time
import zlib
from dataclasses import dataclass
from typing import Final

MODEL: Final = "mock"
PATH: Final = "/v1/chat/completions"
DONE: Final = b"data: [DONE]\n\n"
STREAMS: Final = re.compile(rb'"stream"\s*:\s*true')
WANTS_USAGE: Final = re.compile(rb'"include_usage"\s*:\s*true')
NUMBER: Final = re.compile(rb'"content":\s*"t(\d{15})"')
"""What a chunk carries: its place in the stream, or, stamped, CLOCK_MONOTONIC as it was sent (ns)."""

_PLAN: Final = re.compile(rb"\[\[chunks=(\d+) gap_ms=(\d+) stamped=(\d)\]\]")
_PROMPT_TOKENS: Final = 256
_OUTPUT_TOKENS: Final = 26
# It holds an escape, so that reading the body is no mere search for the next quote.
_WORDS: Final = "Say in \\u00e9asy words how pages of a KV cache are shared. "

_OPENING: Final = (
    f'data: {{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"{MODEL}",'
)
_DELTA: Final = _OPENING + '"choices":[{"index":0,"delta":{%s"content":"t%%015d"},"logprobs":null,"finish_reason":%s}]}\n\n'
_FIRST: Final = (_DELTA % ('"role":"assistant",', "null")).encode()
_NEXT: Final = (_DELTA % ("", "null")).encode()
_LAST: Final = (_DELTA % ("", '"stop"')).encode()
_USAGE: Final = (
    _OPENING + f'"choices":[],"usage":{{"prompt_tokens":{_PROMPT_TOKENS},"completion_tokens":%d,"total_tokens":%d}}}}\n\n'
).encode()

TOTAL_TOKENS: Final = _PROMPT_TOKENS + _OUTPUT_TOKENS
ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "A page is shared. " * 6},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": _PROMPT_TOKENS, "completion_tokens": _OUTPUT_TOKENS, "total_tokens": TOTAL_TOKENS},
    },
    separators=(",", ":"),
).encode()
"""The whole answer to a request that is no stream."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How a stream goes. gap_ms: between two chunks; 0: one after the other. is_stamped: chunks carry the time of sending."""

    chunks: int = 16
    gap_ms: int = 0
    is_stamped: bool = False

    @classmethod
    def read(cls, body: bytes) -> "StreamPlan":
        """The plan in a request's prompt; the ordinary one if there is none."""
        found = _PLAN.search(body)
        if found is None:
            return cls()
        chunks, gap_ms, stamped = map(int, found.groups())
        return cls(chunks, gap_ms, bool(stamped))

    @property
    def words(self) -> str:
        return f"[[chunks={self.chunks} gap_ms={self.gap_ms} stamped={int(self.is_stamped)}]] "


def chunk(number: int, plan: StreamPlan) -> bytes:
    """The event of that number, from 0 on: about 200 bytes, of the same length whatever it carries."""
    form = _FIRST if number == 0 else _LAST if number == plan.chunks - 1 else _NEXT
    return form % (time.monotonic_ns() if plan.is_stamped else number)


def ending(plan: StreamPlan, *, with_usage: bool) -> bytes:
    """What follows the last chunk."""
    usage = _USAGE % (plan.chunks, _PROMPT_TOKENS + plan.chunks) if with_usage else b""
    return usage + DONE


@dataclass(frozen=True, slots=True)
class Expected:
    """An answer's body as it was sent: its length (bytes), and its checksum where that is known before."""

    length_bytes: int
    checksum: int | None

    def is_verbatim(self, body: bytes) -> bool:
        return len(body) == self.length_bytes and self.checksum in (None, zlib.crc32(body))


def expected_answer(plan: StreamPlan | None) -> Expected:
    """What comes back for a request. plan: None for a plain answer; stamps are not known before, their length is."""
    if plan is None:
        return Expected(len(ANSWER), zlib.crc32(ANSWER))
    body = b"".join(chunk(number, plan) for number in range(plan.chunks)) + ending(plan, with_usage=True)
    return Expected(len(body), None if plan.is_stamped else zlib.crc32(body))


def request_body(body_bytes: int, plan: StreamPlan | None = None) -> bytes:
    """A chat request of about so many bytes. plan: of the stream that is asked for; None asks for a plain answer."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": ""}],
        "max_tokens": max(plan.chunks if plan is not None else 0, 16),
        "temperature": 0.7,
        "stream": plan is not None,
    }
    if plan is not None:
        body["stream_options"] = {"include_usage": True}
    text = plan.words if plan is not None else ""
    empty = json.dumps(body)
    words = (body_bytes - len(empty) - len(text)) // len(_WORDS)
    return empty.replace('"content": ""', f'"content": "{text}{_WORDS * max(words, 0)}"').encode()
