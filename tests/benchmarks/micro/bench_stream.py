"""What is seen of a stream as it passes: the watcher over one of 128 chunks, which comes in one read, or chunk by chunk."""

import pytest

from benchmarks.micro.measure import Measure
from benchmarks.proxies.bodies import StreamPlan, chunk, ending
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Watcher
from support.answers import recorded

PLAN = StreamPlan(chunks=128)
CHAT = [*(chunk(number, PLAN) for number in range(PLAN.chunks)), ending(PLAN, with_usage=True)]


def events(stream: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in stream.removesuffix(b"\n\n").split(b"\n\n")]


STREAMS = {
    "chat, 128 chunks": ("/v1/chat/completions", CHAT),
    "chat, recorded": ("/v1/chat/completions", events(recorded("vllm_chat_usage.txt"))),
    "messages, recorded": ("/v1/messages", events(recorded("vllm_messages_tool.txt"))),
}


def watch(path: str, reads: list[bytes]) -> Watcher:
    watcher = DIALECTS[path].watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
    for read in reads:
        watcher.feed(read)
    watcher.finish()
    return watcher


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("at_once", [True, False], ids=["one read", "chunk by chunk"])
def test_watching_a_stream(benchmark: Measure, stream: str, at_once: bool) -> None:
    path, reads = STREAMS[stream]
    watched = benchmark(watch, path, [b"".join(reads)] if at_once else reads)
    once_more = watch(path, reads)
    assert once_more.usage is not None
    assert getattr(watched, "usage", None) == once_more.usage
