"""Anthropic's Messages as the fake engine answers them: the shapes of vLLM, one text block, `ping` after the start."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"


def chat_of(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The chat that such a body is rendered as."""
    system = asked.get("system")
    return [*([{"role": "system", "content": system}] if system else []), *asked["messages"]]


def messages_event(kind: str, **members: Any) -> bytes:
    """One event of a stream, as vLLM writes it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def text_delta(text: str) -> bytes:
    return messages_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


@dataclass(frozen=True, slots=True)
class MessagesAnswer:
    """`produced` times the same text, and why it ended there."""

    model: str
    prompt_tokens: int
    produced: int
    text: str
    is_cut: bool

    @property
    def stop_reason(self) -> str:
        return "max_tokens" if self.is_cut else "end_turn"

    def whole(self) -> dict[str, Any]:
        return self._message([{"type": "text", "text": self.text * self.produced}], self.stop_reason, self.produced)

    def events(self) -> Iterator[tuple[bytes, int]]:
        """Each event, and how many tokens it carries."""
        yield messages_event("message_start", message=self._message([], None, 0)), 0
        yield messages_event("ping"), 0
        yield messages_event("content_block_start", index=0, content_block={"type": "text", "text": ""}), 0
        for _ in range(self.produced):
            yield text_delta(self.text), 1
        yield messages_event("content_block_stop", index=0), 0
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": self.produced}
        yield messages_event("message_delta", delta={"stop_reason": self.stop_reason, "stop_sequence": None}, usage=usage), 0
        yield messages_event("message_stop"), 0

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, output_tokens: int) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": self.prompt_tokens, "output_tokens": output_tokens},
        }
