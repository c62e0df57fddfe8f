"""Anthropic's own SDK, over a wire that is replaced, understands what the dialect writes."""

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.dialect import ErrorFacts
from support.answers import recorded

MESSAGES = AnthropicMessages()
STREAM = recorded("vllm_messages_stream.txt")
DELTAS = STREAM.count(b"event: content_block_delta")


def client_of(answer: Callable[[], tuple[int, str, bytes]]) -> anthropic.Anthropic:
    """A client whose every request is answered by `answer`: status, content type, body."""
    client = anthropic.Anthropic(api_key="none", base_url="http://127.0.0.1:9", max_retries=0)
    http: Any = client._client

    class Wire(type(http._transport)):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            status, kind, body = answer()
            module = __import__(type(request).__module__.split(".")[0])
            return module.Response(status, headers={"content-type": kind}, content=body, request=request)

    http._transport = Wire()
    http._mounts = {}
    return client


def ask(client: anthropic.Anthropic, **more: Any) -> Any:
    return client.messages.create(model="tiny", max_tokens=4, messages=[{"role": "user", "content": "hi"}], **more)


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.RequestTooLargeError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (502, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.ServiceUnavailableError),
        (504, "timeout_error", anthropic.DeadlineExceededError),
    ],
)
def test_a_refusal_is_the_sdks_error_for_its_status_with_our_code_and_numbers(
    status: int, kind: str, error: type[anthropic.APIStatusError]
) -> None:
    body = MESSAGES.error_body(ErrorFacts(status, "some_code", "It says why.", None, {"need_blocks": 9}))
    client = client_of(lambda: (status, "application/json", body))
    with pytest.raises(error, match="It says why") as refusal:
        ask(client)
    assert refusal.value.status_code == status
    assert refusal.value.body == {
        "type": "error",
        "error": {"type": kind, "message": "It says why.", "param": None, "code": "some_code", "need_blocks": 9},
    }


def test_a_stream_that_ends_in_our_error_event_raises() -> None:
    begun, _, _ = STREAM.partition(b"event: content_block_stop")
    broken = begun + MESSAGES.error_event(ErrorFacts(504, "stall", "The engine sent nothing for 300 s."))
    client = client_of(lambda: (200, "text/event-stream", broken))
    seen: list[str] = []
    with pytest.raises(anthropic.APIStatusError, match="sent nothing"):
        seen.extend(event.type for event in ask(client, stream=True))
    assert seen.count("content_block_delta") == DELTAS > 0


def test_a_stream_that_is_kept_alive_before_it_begins_is_whole() -> None:
    kept = MESSAGES.waiting_event("waiting, 3 ahead") * 2 + STREAM
    events = [event.type for event in ask(client_of(lambda: (200, "text/event-stream", kept)), stream=True)]
    assert (events[0], events[-1], events.count("content_block_delta")) == ("message_start", "message_stop", DELTAS)
    watcher = MESSAGES.watcher(is_event_stream=True, hide_usage=False, content_encoding=None)
    watcher.feed(MESSAGES.waiting_event("waiting, 3 ahead"))
    assert (watcher.token_events, watcher.has_error, watcher.at_boundary) == (0, False, True)
