"""No bytes that an engine sends make a watcher raise, change what passes, or tell something else when they are cut."""

import random
from collections.abc import Callable

import pytest

from fuzz.mutation import cuts, try_all
from gateway.dialects.dialect import Dialect, Watcher
from support.answers import recorded, relay, seen, streams
from support.dialect_samples import ALL, STREAMING, dialect_of, plain_answers


def streams_of(dialect: Dialect) -> list[bytes]:
    """Recorded streams of one dialect."""
    return [recorded(name) for name in streams() if dialect_of(name) is dialect]


def plain_answers_of(dialect: Dialect) -> list[bytes]:
    return [recorded(name) for name in plain_answers() if dialect_of(name) is dialect]


def watcher(dialect: Dialect, *, is_event_stream: bool, hide_usage: bool, encoding: str | None = None) -> Watcher:
    return dialect.watcher(is_event_stream=is_event_stream, hide_usage=hide_usage, content_encoding=encoding)


def check_facts(found: Watcher) -> None:
    assert found.token_events >= 0
    assert found.text_bytes >= 0
    usage = found.usage
    assert found.usage_missing is (usage is None)
    if usage is not None:
        assert all(type(count) is int and count >= 0 for count in (usage.prompt_tokens, usage.output_tokens))
        assert usage.cached_tokens is None or 0 <= usage.cached_tokens <= usage.prompt_tokens


def check_stream(dialect: Dialect) -> Callable[[bytes, random.Random], None]:
    def check(data: bytes, dice: random.Random) -> None:
        for hide_usage in (False, True):
            whole = watcher(dialect, is_event_stream=True, hide_usage=hide_usage)
            shown = relay(whole, [data])
            check_facts(whole)
            if not hide_usage or b"usage" not in data:
                assert shown == data
            assert is_left_of(shown, data)
            parted = watcher(dialect, is_event_stream=True, hide_usage=hide_usage)
            again = relay(parted, cuts(dice, data))
            # Beyond the limit of an event what is seen depends on where it was cut; what passes does not.
            if len(data) < 60_000:
                assert again == shown
                assert seen(parted) == seen(whole)
            assert is_left_of(again, data)

    return check


def is_left_of(shown: bytes, data: bytes) -> bool:
    """Whether `shown` is `data` less whole stretches of it: nothing was added, nothing moved."""
    if shown == data:
        return True
    at = 0
    for line in shown.splitlines(keepends=True):
        at = data.find(line, at)
        if at < 0:
            return False
        at += len(line)
    return True


def check_plain(dialect: Dialect) -> Callable[[bytes, random.Random], None]:
    def check(data: bytes, dice: random.Random) -> None:
        pieces = cuts(dice, data)
        for encoding in (None, "gzip", "deflate", "br", "identity", "x-unknown"):
            found = watcher(dialect, is_event_stream=False, hide_usage=dice.random() < 0.5, encoding=encoding)
            for piece in pieces:
                assert found.feed(piece) is piece
            assert found.finish() == b""
            check_facts(found)

    return check


@pytest.mark.parametrize("dialect", STREAMING, ids=lambda dialect: dialect.name)
def test_mutated_streams_pass_as_they_came_and_tell_the_same_wherever_they_are_cut(dialect: Dialect, fuzz_inputs: int) -> None:
    try_all(f"streams of {dialect.name}", fuzz_inputs, streams_of(dialect), check_stream(dialect))


@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
def test_mutated_plain_answers_pass_as_they_came(dialect: Dialect, fuzz_inputs: int) -> None:
    try_all(f"plain answers of {dialect.name}", fuzz_inputs, plain_answers_of(dialect), check_plain(dialect))
