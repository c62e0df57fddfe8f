"""What every dialect promises beside reading and watching: words while a stream waits, no priority beyond what is allowed."""

import json

import pytest

from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Dialect

EVERY = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
STREAMING = pytest.mark.parametrize(
    "dialect",
    [dialect for dialect in DIALECTS.values() if dialect.name != "openai_embeddings"],  # no answer of those is a stream
    ids=lambda dialect: dialect.name,
)


@STREAMING
def test_its_words_while_waiting_are_whole_and_no_event_that_counts(dialect: Dialect) -> None:
    said = dialect.waiting_event("3 ahead")
    assert b"3 ahead" in said
    assert said.endswith(b"\n\n")
    watcher = dialect.watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
    assert watcher.feed(said) is said
    assert watcher.at_boundary
    assert (watcher.token_events, watcher.has_error, watcher.is_complete) == (0, False, False)


@EVERY
@pytest.mark.parametrize("priority", [-7, 0, 7])
def test_a_priority_is_raised_to_what_is_allowed_or_left_alone(dialect: Dialect, priority: int) -> None:
    body = {"model": "tiny", "x": "priority", "inner": {"priority": -9}, "priority": priority}
    written = json.dumps(body).encode()
    edited = dialect.limit_priority(written, -2)
    assert json.loads(edited) in (body | {"priority": max(priority, -2)}, body)
    if priority >= -2:
        assert edited is written


def test_of_several_priorities_none_is_beyond_what_is_allowed() -> None:
    """Which of them an engine reads is its affair."""
    body = b'{"priority": -9, "prompt": "x", "priority": 3, "priority":-5}'
    edited = DIALECTS["/v1/completions"].limit_priority(body, -2)
    assert edited == b'{"priority": -2, "prompt": "x", "priority": 3, "priority":-2}'
