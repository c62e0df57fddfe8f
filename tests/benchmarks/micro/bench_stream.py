"""What is seen of a stream: the watcher over one of 128 chunks, which comes in one read, or chunk by chunk, or has passed."""

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


# What a stream of fifty tokens a second leaves to be looked at by the watchdog, four times a second.
UNSEEN = 12


def watch(path: str, reads: list[bytes], passed: int = 0) -> Watcher:
    """passed: how many of the reads are looked at together, once they have passed; 0: each is seen before."""
    watcher = DIALECTS[path].watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
    if passed:
        for start in range(0, len(reads), passed):
            watcher.feed_passed(reads[start : start + passed])
    else:
        for read in reads:
            watcher.feed(read)
    watcher.finish()
    return watcher


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("at_once", "passed"), [(True, 0), (False, 0), (False, UNSEEN)], ids=["one read", "each", "passed"])
def test_watching_a_stream(benchmark: Measure, stream: str, at_once: bool, passed: int) -> None:
    path, reads = STREAMS[stream]
    watched = benchmark(watch, path, [b"".join(reads)] if at_once else reads, passed)
    once_more = watch(path, reads)
    assert once_more.usage is not None
    assert getattr(watched, "usage", None) == once_more.usage
