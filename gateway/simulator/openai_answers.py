"""The answers of vLLM's OpenAI routes: whole bodies, and the events of a stream. Values in, bytes out.

A chat stream opens with a role chunk; `finish_reason` comes on the last chunk that has text; usage, where asked for, follows in
a chunk without choices; then `[DONE]`. A chunk carries all tokens since the last one, so chunks are not tokens.
"""

import json
import time
from typing import Any

from gateway.simulator.openai_requests import Ask, Refused, Sample
from gateway.simulator.toy_text import answer_text

DONE = b"data: [DONE]\n\n"


def error_object(status: int, message: str, *, kind: str, param: str | None = None) -> dict[str, Any]:
    """An error as vLLM shapes it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def refusal_object(refused: Refused) -> dict[str, Any]:
    return error_object(refused.status, refused.message, kind=refused.kind, param=refused.param)


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def engine_gone() -> dict[str, Any]:
    """What a generation gets when the engine ended under it: as an event in a stream, else as the body of a 500."""
    message = "EngineCore encountered an issue: it has ended before this request had."
    return error_object(500, message, kind="InternalServerError")


class Answer:
    """Writes the answer to one ask. It keeps how much of each sample has been told."""

    def __init__(self, ask: Ask, *, model: str, answer_id: str) -> None:
        self._ask = ask
        self._told = [0] * len(ask.samples)
        self._has_opened = False
        self._head = {
            "id": f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{answer_id}",
            "object": "chat.completion.chunk" if ask.is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def usage(self) -> dict[str, int]:
        """Tokens so far: prompts once each, outputs of all samples."""
        completion = sum(sample.sequence.generated for sample in self._ask.samples)
        return {
            "prompt_tokens": self._ask.prompt_tokens,
            "total_tokens": self._ask.prompt_tokens + completion,
            "completion_tokens": completion,
        }

    def events(self) -> bytes:
        """The events for everything generated since the last call; empty if there is nothing."""
        out: list[bytes] = []
        for index, sample in enumerate(self._ask.samples):
            told, generated = self._told[index], sample.sequence.generated
            if generated == told:
                continue
            if self._ask.is_chat and not self._has_opened:
                self._has_opened = True
                out += [event(self._chunk(i, {"role": "assistant", "content": ""})) for i in range(len(self._ask.samples))]
            self._told[index] = generated
            text = answer_text(sample.seed, told, generated - told)
            finish = sample.finish_reason if sample.sequence.state == "finished" else None
            out.append(event(self._chunk(index, {"content": text} if self._ask.is_chat else text, finish)))
        return b"".join(out)

    def last_events(self) -> bytes:
        """The end of a stream, once all samples have been told whole."""
        usage = event({**self._head, "choices": [], "usage": self.usage()}) if self._ask.include_usage else b""
        return usage + DONE

    def whole(self) -> dict[str, Any]:
        """The body of a plain answer."""
        choices = [self._choice(index, sample) for index, sample in enumerate(self._ask.samples)]
        kind = "chat.completion" if self._ask.is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": {**self.usage(), "prompt_tokens_details": None}}

    def _chunk(self, index: int, said: object, finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta" if self._ask.is_chat else "text": said,
            "logprobs": None,
            "finish_reason": finish,
        }
        if finish or not self._ask.is_chat:
            choice["stop_reason"] = None
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._ask.usage_on_every_chunk:
            chunk["usage"] = self.usage()
        return chunk

    def _choice(self, index: int, sample: Sample) -> dict[str, Any]:
        text = answer_text(sample.seed, 0, sample.sequence.generated)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        return {
            "index": index,
            "message" if self._ask.is_chat else "text": message if self._ask.is_chat else text,
            "logprobs": None,
            "finish_reason": sample.finish_reason,
            "stop_reason": None,
        }
