"""A default behaviour for `FakeUpstream` that looks like a small vLLM server: 64 usable blocks of 16 tokens, context 1024.

    engine = FakeEngine()
    async with FakeUpstream(default=engine) as server: ...

    engine.shape = Shape(events=20, gap_s=0.05)                   # what completions do from now on
    server.script("slow", engine.completion(events=3, gap_s=1.0))   # what those tagged "slow" do

A completion gives one token an event, `min(events, cap)` of them; the finish reason is "length" if the cap cut it short.
Token counts are `count_tokens`: a quarter of the UTF-8 bytes, rounded up; four more for each chat message and two for each
chat prompt; a list of ids counts itself. `/tokenize` and `usage` say the same figures. `engine.preemptions`,
`engine.foreign_blocks` and the capacity fields show up in `/metrics` and may be changed while it runs.
Routes: /health, /version, /v1/models, /metrics, /tokenize, /v1/chat/completions, /v1/completions, /v1/messages with its
count_tokens, /v1/responses, /v1/embeddings; anything else is 404.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from support import fake_messages, fake_responses
from support.fake_upstream import Behaviour, FakeExchange, Header, SeenRequest, chunk, head

JSON: Header = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Shape:
    """How completions go. first_gap_s is the wait before the answer's head; gap_s the wait before every further event."""

    events: int = 4
    gap_s: float = 0.0
    first_gap_s: float = 0.0
    text: str = "tok "  # of every event


def count_tokens(prompt: Any) -> int:
    """Tokens of one prompt: text, a list of ids, or a list of chat messages."""
    if isinstance(prompt, str):
        return -(-len(prompt.encode(errors="surrogatepass")) // 4)
    if all(isinstance(item, int) for item in prompt):
        return len(prompt)
    return 2 + sum(4 + count_tokens(_text_of(message)) for message in prompt)


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@dataclass
class FakeEngine:
    """See the file's first lines. num_gpu_blocks counts vLLM's null block; usable is one less."""

    model: str = "fake-model"
    version: str = "0.32.0+cpu"
    num_gpu_blocks: int = 65
    block_tokens: int = 16
    max_model_len: int = 1024
    kv_cache_size_tokens: int = 1040
    preemptions: int = 0
    foreign_blocks: int = 0  # used by nobody that came through here
    ready: bool = True  # False: /health and completions answer 503
    shape: Shape = field(default_factory=Shape)
    _running: dict[int, int] = field(default_factory=dict)  # id of the seen request -> tokens it has

    @property
    def used_blocks(self) -> int:
        return self.foreign_blocks + sum(-(-tokens // self.block_tokens) for tokens in self._running.values())

    def completion(self, **changes: Any) -> Behaviour:
        """A behaviour like the default one, with these fields of `Shape` changed."""

        async def behave(exchange: FakeExchange) -> None:
            await self._complete(exchange, replace(self.shape, **changes))

        return behave

    async def __call__(self, exchange: FakeExchange) -> None:
        route = exchange.request.target.split(b"?")[0].decode("latin-1")
        match exchange.request.method, route:
            case b"GET", "/health":
                await exchange.send(head(200 if self.ready else 503, [(b"content-length", b"0")]))
            case b"GET", "/version":
                await self._send_json(exchange, {"version": self.version})
            case b"GET", "/v1/models":
                card = {
                    "id": self.model,
                    "object": "model",
                    "created": 1,
                    "owned_by": "vllm",
                    "root": self.model,
                    "parent": None,
                }
                await self._send_json(exchange, {"object": "list", "data": [card | {"max_model_len": self.max_model_len}]})
            case b"GET", "/metrics":
                text = self._metrics().encode()
                fields = [(b"content-type", b"text/plain; version=0.0.4"), (b"content-length", b"%d" % len(text))]
                await exchange.send(head(200, fields) + text)
            case b"POST", "/tokenize":
                asked = json.loads(await exchange.body())
                count = count_tokens(asked["messages"] if "messages" in asked else asked["prompt"])
                tokens = list(range(count))
                await self._send_json(exchange, {"count": count, "max_model_len": self.max_model_len, "tokens": tokens})
            case b"POST", fake_messages.COUNT_PATH:
                count = count_tokens(fake_messages.chat_of(json.loads(await exchange.body())))
                await self._send_json(exchange, {"input_tokens": count})
            case b"POST", fake_responses.EMBEDDINGS_PATH:
                prompts = _prompts_of(json.loads(await exchange.body())["input"])
                answer = fake_responses.embeddings(self.model, prompts, sum(map(count_tokens, prompts)))
                await self._send_json(exchange, answer)
            case b"POST", "/v1/chat/completions" | "/v1/completions" | fake_messages.PATH | fake_responses.PATH:
                await self._complete(exchange, self.shape)
            case _:
                await self._send_json(exchange, {"detail": "Not Found"}, status=404)

    async def _complete(self, exchange: FakeExchange, shape: Shape) -> None:
        asked = json.loads(await exchange.body())
        if not self.ready:
            await self._send_error(exchange, 503, "Service Unavailable", "not ready")
            return
        is_chat = b"chat" in exchange.request.target
        is_messages = exchange.request.target.startswith(fake_messages.PATH.encode())
        if is_messages and not isinstance(asked.get("max_tokens"), int):
            await self._send_error(exchange, 400, "Bad Request", "1 validation error: body.max_tokens")
            return
        is_responses = exchange.request.target.startswith(fake_responses.PATH.encode())
        chat = asked.get("messages")
        if is_messages or is_responses:
            chat = fake_messages.chat_of(asked) if is_messages else fake_responses.chat_of(asked)
        prompts = [chat] if chat is not None else _prompts_of(asked["prompt"])
        prompt_tokens = sum(map(count_tokens, prompts))
        longest = max(map(count_tokens, prompts))
        cap = asked.get("max_completion_tokens") or asked.get("max_output_tokens") or asked.get("max_tokens")
        if cap is None:
            cap = 16 if not is_chat and not is_responses and "max_tokens" not in asked else self.max_model_len
        if cap > self.max_model_len or longest >= self.max_model_len:
            text = f"This model's maximum context length is {self.max_model_len} tokens; prompt {longest}, max_tokens {cap}."
            await self._send_error(exchange, 400, "BadRequestError", text)
            return
        produced = min(shape.events, cap, self.max_model_len - longest)
        finish = "length" if produced < shape.events else "stop"
        choices = len(prompts) * (asked.get("n") or 1)
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": produced * choices,
            "total_tokens": prompt_tokens + produced * choices,
        }
        answer = _Answer(self.model, is_chat, choices, produced, shape.text, finish, usage)
        messages = fake_messages.MessagesAnswer(self.model, prompt_tokens, produced, shape.text, finish == "length")
        responses = fake_responses.ResponsesAnswer(self.model, prompt_tokens, produced, shape.text, finish == "length")
        key = id(exchange.request)
        self._running[key] = prompt_tokens
        try:
            await asyncio.sleep(shape.first_gap_s)
            if (is_messages or is_responses) and asked.get("stream"):
                await self._stream_events(exchange, (messages if is_messages else responses).events(), shape)
            elif asked.get("stream"):
                options = asked.get("stream_options") or {}
                await self._stream(exchange, answer, shape, wants_usage=bool(options.get("include_usage")))
            else:
                await asyncio.sleep(shape.gap_s * produced)
                whole = messages.whole() if is_messages else responses.whole() if is_responses else answer.whole()
                await self._send_json(exchange, whole)
        finally:
            del self._running[key]

    async def _stream(self, exchange: FakeExchange, answer: "_Answer", shape: Shape, *, wants_usage: bool) -> None:
        fields = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"transfer-encoding", b"chunked")]
        await exchange.send(head(200, fields))
        for number, event in enumerate(answer.events(wants_usage=wants_usage)):
            if number:
                await asyncio.sleep(shape.gap_s)
            self._running[id(exchange.request)] += len(event["choices"])
            await exchange.send(chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def _stream_events(self, exchange: FakeExchange, events: Iterator[tuple[bytes, int]], shape: Shape) -> None:
        fields = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"transfer-encoding", b"chunked")]
        await exchange.send(head(200, fields))
        for event, tokens in events:
            await asyncio.sleep(shape.gap_s * tokens)
            self._running[id(exchange.request)] += tokens
            await exchange.send(chunk(event))
        await exchange.send(chunk(b""))

    async def _send_error(self, exchange: FakeExchange, status: int, kind: str, text: str) -> None:
        await self._send_json(
            exchange, {"error": {"message": text, "type": kind, "param": None, "code": status}}, status=status
        )

    async def _send_json(self, exchange: FakeExchange, value: object, *, status: int = 200) -> None:
        body = json.dumps(value).encode()
        await exchange.body()
        await exchange.send(head(status, [JSON, (b"content-length", b"%d" % len(body))]) + body)

    def _metrics(self) -> str:
        labels = f'engine="0",model_name="{self.model}"'
        usable = self.num_gpu_blocks - 1
        info = (
            f'block_size="{self.block_tokens}",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
            f'kv_cache_size_tokens="{self.kv_cache_size_tokens}",num_gpu_blocks="{self.num_gpu_blocks}"'
        )
        rows = [
            ("gauge", "vllm:num_requests_running", labels, len(self._running)),
            ("gauge", "vllm:num_requests_waiting", labels, 0),
            ("gauge", "vllm:kv_cache_usage_perc", labels, min(1.0, self.used_blocks / usable)),
            ("counter", "vllm:num_preemptions_total", labels, self.preemptions),
            ("gauge", "vllm:cache_config_info", info, 1.0),
        ]
        return "".join(
            f"# HELP {name} As in vLLM.\n# TYPE {name.removesuffix('_total')} {kind}\n{name}{{{marks}}} {value}\n"
            for kind, name, marks, value in rows
        )


def _prompts_of(prompt: Any) -> list[Any]:
    """The prompts in a completions request: text, ids, a list of texts or a list of lists of ids."""
    if isinstance(prompt, str) or all(isinstance(item, int) for item in prompt):
        return [prompt]
    return list(prompt)


@dataclass(frozen=True, slots=True)
class _Answer:
    model: str
    is_chat: bool
    choices: int
    produced: int
    text: str
    finish: str
    usage: dict[str, int]

    def whole(self) -> dict[str, Any]:
        text = self.text * self.produced
        part = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choices = [{"index": index, **part, "logprobs": None, "finish_reason": self.finish} for index in range(self.choices)]
        return self._envelope("chat.completion") | {"choices": choices, "usage": self.usage}

    def events(self, *, wants_usage: bool) -> Iterator[dict[str, Any]]:
        for number in range(self.produced):
            finish = self.finish if number == self.produced - 1 else None
            for index in range(self.choices):
                delta = {"role": "assistant", "content": self.text} if number == 0 else {"content": self.text}
                part = {"delta": delta} if self.is_chat else {"text": self.text}
                choice = {"index": index, **part, "logprobs": None, "finish_reason": finish}
                yield self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if wants_usage:
            yield self._envelope("chat.completion.chunk") | {"choices": [], "usage": self.usage}

    def _envelope(self, kind: str) -> dict[str, Any]:
        name, ident = (kind, "chatcmpl-1") if self.is_chat else ("text_completion", "cmpl-1")
        return {"id": ident, "object": name, "created": 1, "model": self.model}


def forwarded(request: SeenRequest) -> dict[str, Any]:
    """The JSON body that the engine was sent."""
    value = json.loads(request.body)
    assert isinstance(value, dict)
    return value
