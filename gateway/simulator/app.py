"""The pretend engine's HTTP routes, as a raw ASGI application.

/v1/chat/completions and /v1/completions (plain and streamed), /v1/models, /version, /health, /ping, /tokenize, /metrics. A
client that leaves, streaming or not, ends its generation at once. The version says `+cpu`, as vLLM's CPU build does, so that a
gateway reads no lookahead block into the arithmetic; and `simulated`, so that nobody takes it for the real one.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from gateway.simulator import openai_requests
from gateway.simulator.engine import Engine, EngineBusy, EngineStopped, Generation
from gateway.simulator.metrics_page import CONTENT_TYPE, render_metrics
from gateway.simulator.openai_answers import DONE, Answer, engine_gone, event, refusal_object
from gateway.simulator.openai_requests import Ask, Refused, Served
from gateway.simulator.toy_text import token_ids

VERSION: Final = "0.32.0+cpu.simulated"
MAX_BODY_BYTES: Final = 8 * 1024 * 1024

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON = b"application/json"
_STREAM = b"text/event-stream; charset=utf-8"


class ClientGone(Exception):
    """The client left before its answer was whole."""


class App:
    """Routes requests to one engine that serves one model."""

    def __init__(self, engine: Engine, served: Served) -> None:
        self._engine = engine
        self._served = served
        self._started_s = time.time()
        self._ids = itertools.count(1)
        self._get: dict[str, Callable[[], tuple[int, bytes, bytes]]] = {
            "/health": lambda: (200, _JSON, b""),
            "/ping": lambda: (200, _JSON, b""),
            "/version": lambda: (200, _JSON, _dumped({"version": VERSION})),
            "/v1/models": lambda: (200, _JSON, _dumped(self._models())),
            "/metrics": lambda: (200, CONTENT_TYPE, render_metrics(engine, served, started_s=self._started_s)),
        }
        self._post = {"/v1/chat/completions", "/v1/completions", "/tokenize"}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only http is served, not {scope['type']}")
        path, method = scope["path"], scope["method"]
        try:
            if path in self._get and method in ("GET", "HEAD"):
                await _answer(send, *self._get[path]())
            elif path in self._post and method == "POST":
                await self._serve(path, scope, receive, send)
            elif path in self._get or path in self._post:
                await _answer(send, 405, _JSON, _dumped({"detail": "Method Not Allowed"}))
            else:
                await _answer(send, 404, _JSON, _dumped({"detail": "Not Found"}))
        except Refused as refused:
            await _answer(send, refused.status, _JSON, _dumped(refusal_object(refused)))
        except ClientGone:
            return  # nobody is there to be answered

    async def _serve(self, path: str, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        body = openai_requests.read_json(await _read_body(receive), headers.get(b"content-type", ""))
        if path == "/tokenize":
            await _answer(send, 200, _JSON, _dumped(self._tokenize(body)))
            return
        ask = openai_requests.read_ask(body, self._served, is_chat=path == "/v1/chat/completions")
        answer_id = headers.get(b"x-request-id") or f"{int(self._started_s):x}{next(self._ids):08x}"
        answer = Answer(ask, model=self._served.name, answer_id=answer_id)
        try:
            generation = self._engine.submit(tuple(sample.sequence for sample in ask.samples))
        except EngineBusy:
            message = "The engine has as many requests waiting as it takes. Try again later."
            raise Refused(503, message, kind="Service Unavailable") from None
        except EngineStopped:
            await _answer(send, 500, _JSON, _dumped(engine_gone()))
            return
        departure = asyncio.create_task(_departure(receive, generation))
        try:
            if ask.stream:
                await self._stream(send, answer, ask, generation)
            else:
                await self._plain(send, answer, generation)
        finally:
            departure.cancel()
            self._engine.abort(generation)
            for sample in ask.samples:
                is_whole = sample.sequence.generated >= sample.sequence.output_tokens
                self._engine.finished[sample.finish_reason if is_whole else "abort"] += 1

    async def _stream(self, send: Send, answer: Answer, ask: Ask, generation: Generation) -> None:
        # As vLLM, the status line goes out before there is anything to say.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", _STREAM)]})
        while True:
            await _changed(generation)
            if generation.stopped:
                await send({"type": "http.response.body", "body": event(engine_gone()) + DONE})
                return
            if generation.is_finished:
                break
            # What comes while a slow client holds this up is told in one chunk afterwards.
            await send({"type": "http.response.body", "body": answer.events(), "more_body": True})
        await send({"type": "http.response.body", "body": answer.events() + answer.last_events()})

    async def _plain(self, send: Send, answer: Answer, generation: Generation) -> None:
        while not generation.is_finished:
            await _changed(generation)
            if generation.stopped:
                await _answer(send, 500, _JSON, _dumped(engine_gone()))
                return
        await _answer(send, 200, _JSON, _dumped(answer.whole()))

    def _models(self) -> dict[str, Any]:
        model = {
            "id": self._served.name,
            "object": "model",
            "created": int(self._started_s),
            "owned_by": "vllm",
            "root": self._served.name,
            "parent": None,
            "max_model_len": self._served.max_context,
            "permission": [],
        }
        return {"object": "list", "data": [model]}

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        openai_requests.check_model(body, self._served)
        prompt = body.get("prompt")
        if prompt is not None and not isinstance(prompt, str):
            raise Refused(400, "1 validation error: prompt has to be a text", kind="Bad Request", param="prompt")
        ids = token_ids(openai_requests.chat_text(body) if prompt is None else prompt)
        return {"count": len(ids), "max_model_len": self._served.max_context, "tokens": ids, "token_strs": None}


async def _changed(generation: Generation) -> None:
    """Wait for news of a generation. Raises ClientGone if the news is that its client left."""
    await generation.changed.wait()
    generation.changed.clear()
    if generation.client_gone:
        raise ClientGone


async def _departure(receive: Receive, generation: Generation) -> None:
    """Watch for the client leaving. It ends by being cancelled if the client stays."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.client_gone = True
    generation.changed.set()


async def _read_body(receive: Receive) -> bytes:
    """The whole body. Raises Refused over MAX_BODY_BYTES, ClientGone if it never came whole."""
    parts: list[bytes] = []
    length_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        length_bytes += len(part)
        if length_bytes > MAX_BODY_BYTES:
            raise Refused(413, f"The body is larger than {MAX_BODY_BYTES} bytes.", kind="Request Entity Too Large")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _answer(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
