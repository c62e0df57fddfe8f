"""OpenAI's Responses and Embeddings as the fake engine answers them: the shapes of vLLM, one message, one vector an input."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PATH = "/v1/responses"
EMBEDDINGS_PATH = "/v1/embeddings"


def chat_of(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The chat that such a body is rendered as."""
    said = asked["input"]
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    instructions = asked.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    return [*system, *({**item, "content": item.get("content") or item.get("output")} for item in items)]


def responses_event(kind: str, number: int, **members: Any) -> bytes:
    """One event of a stream, as vLLM writes it."""
    return f"event: {kind}\ndata: {json.dumps({**members, 'sequence_number': number, 'type': kind})}\n\n".encode()


def text_delta(text: str, number: int = 4) -> bytes:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    return responses_event("response.output_text.delta", number, delta=text, **place)


@dataclass(frozen=True, slots=True)
class ResponsesAnswer:
    """`produced` times the same text, and whether a cap ended it there."""

    model: str
    prompt_tokens: int
    produced: int
    text: str
    is_cut: bool

    def whole(self) -> dict[str, Any]:
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.produced,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.produced,
        }
        details = {"reason": "max_output_tokens"} if self.is_cut else None
        return self._response("incomplete" if self.is_cut else "completed", details, [self._message()], usage)

    def begin(self) -> Iterator[bytes]:
        opening = self._response("in_progress", None, [], None)
        item = {**self._message(), "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield responses_event("response.created", 0, response=opening)
        yield responses_event("response.in_progress", 1, response=opening)
        yield responses_event("response.output_item.added", 2, item=item, output_index=0)
        yield responses_event("response.content_part.added", 3, part=part, item_id="msg_1", output_index=0, content_index=0)

    def events(self) -> Iterator[tuple[bytes, int]]:
        """Each event, and how many tokens it carries."""
        for event in self.begin():
            yield event, 0
        for number in range(self.produced):
            yield text_delta(self.text, 4 + number), 1
        number = 4 + self.produced
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield responses_event("response.output_text.done", number, text=self.text * self.produced, logprobs=[], **place), 0
        yield responses_event("response.output_item.done", number + 1, item=self._message(), output_index=0), 0
        yield responses_event("response.completed", number + 2, response=self.whole()), 0

    def _message(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": self.text * self.produced, "annotations": [], "logprobs": None}
        return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}

    def _response(self, status: str, details: Any, output: list[Any], usage: Any) -> dict[str, Any]:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": self.model,
            "status": status,
            "incomplete_details": details,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }


def embeddings(model: str, prompts: list[Any], prompt_tokens: int) -> dict[str, Any]:
    """One short vector for each prompt."""
    data = [{"object": "embedding", "index": index, "embedding": [0.25, -0.5]} for index in range(len(prompts))]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0}
    return {"id": "embd-1", "object": "list", "created": 1, "model": model, "data": data, "usage": usage}
