"""OpenAI's own SDK, over a wire that is replaced, understands what the dialects write."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from gateway.dialects import DIALECTS
from gateway.dialects.dialect import ErrorFacts
from support.answers import recorded

CHAT = DIALECTS["/v1/chat/completions"]


def client_of(answer: Callable[[], tuple[int, str, bytes]]) -> openai.OpenAI:
    """A client whose every request is answered by `answer`: status, content type, body."""
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9/v1", max_retries=0)
    http: Any = client._client

    class Wire(type(http._transport)):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            status, kind, body = answer()
            module = __import__(type(request).__module__.split(".")[0])
            return module.Response(status, headers={"content-type": kind}, content=body, request=request)

    http._transport = Wire()
    http._mounts = {}
    return client


def test_a_refusal_is_the_sdks_error_for_its_status_with_our_code_and_numbers() -> None:
    body = CHAT.error_body(ErrorFacts(429, "queue_full", "The queue is full.", None, {"need_blocks": 9}))
    client = client_of(lambda: (429, "application/json", body))
    with pytest.raises(openai.RateLimitError) as refusal:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert (refusal.value.code, refusal.value.type) == ("queue_full", "rate_limit_error")
    assert refusal.value.body == {
        "message": "The queue is full.",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
        "need_blocks": 9,
    }


def test_a_stream_that_ends_in_our_error_event_raises() -> None:
    begun = recorded("vllm_chat_usage.txt").split(b'data: {"id":"chatcmpl-b6b0e8d9904d9c0b"')[:3]
    stream = b'data: {"id":"chatcmpl-b6b0e8d9904d9c0b"'.join(begun)
    broken = stream + CHAT.error_event(ErrorFacts(504, "stall", "The engine sent nothing for 300 s."))
    client = client_of(lambda: (200, "text/event-stream", broken))
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True)
    texts: list[str | None] = []
    with pytest.raises(openai.APIError, match="sent nothing"):
        texts.extend(chunk.choices[0].delta.content for chunk in answer)
    assert texts == ["", "BC"]
