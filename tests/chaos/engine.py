"""An engine of the storm: it answers as each request's plan says, and changes as the weather does.

It looks like vLLM or like llama.cpp to a gateway that discovers it. Requests without a plan are probes; they get honest
answers, or whatever the weather makes of them.
"""

import asyncio
import itertools
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

from chaos.judge import Judge
from chaos.performance import Performance, json_answer
from chaos.plan import ALPHA, BETA, Plan

_starts = itertools.count(1)
BLOCK_TOKENS = 16
GARBAGE_PAGE = b'\xff\x00nonsense{{{ 1e999\nvllm:cache_config_info{block_size="'


@dataclass
class Engine:
    """One engine on one port. probes: "good", "failing" (503), "silent" or "garbage"."""

    name: str
    judge: Judge
    plan_of: Callable[[int], Plan]
    is_llama: bool = False
    blocks: int = 90
    context: int = 512
    slots: int = 24
    foreign_blocks: int = 0
    probes: str = "good"
    port: int = 0
    served: int = 0
    connections: set["_Connection"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _deaf: list[socket.socket] = field(default_factory=list)
    _started: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    @property
    def model(self) -> str:
        return BETA if self.is_llama else ALPHA

    @property
    def longest(self) -> int:
        """Tokens that one sequence may have."""
        return self.blocks if self.is_llama else self.context

    @property
    def block_tokens(self) -> int:
        return 1 if self.is_llama else BLOCK_TOKENS

    # What the weather does

    async def start(self) -> None:
        self._started = 1.7e9 + next(_starts)
        self.judge.tell_budget(self.blocks, self.longest, self.slots if self.is_llama else None)
        await self.listen()

    async def listen(self) -> None:
        """Accept connections (again), on the port of before."""
        for each in self._deaf:
            each.close()
        self._deaf.clear()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, reuse_address=True, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Refuse connections until `listen`; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def go_deaf(self) -> None:
        """Neither accept nor refuse connections until `listen`: whoever connects waits."""
        self.refuse()
        deaf = socket.socket()
        self._deaf.append(deaf)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deaf.bind(("127.0.0.1", self.port))
        deaf.listen(0)
        for _ in range(2):  # they fill the line of those who wait to be accepted
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
            self._deaf.append(filler)

    def cut_all(self, *, reset: bool) -> None:
        for connection in list(self.connections):
            connection.leave(reset=reset)

    async def stop(self) -> None:
        self.refuse()
        for each in self._deaf:
            each.close()
        self._deaf.clear()
        self.cut_all(reset=True)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # What requests get

    def needs_of(self, asked: dict[str, Any]) -> tuple[int, int]:
        """Blocks and sequences of a body, by the engine's own count."""
        prompts = _prompts(asked)
        samples = asked.get("n") or 1
        cap = asked.get("max_completion_tokens") or asked.get("max_tokens")
        if cap is None:
            cap = 16 if "prompt" in asked and not self.is_llama else self.longest
        longest = self.judge.believed_context
        each = [-(-min(tokens + cap - 1, longest) // self.block_tokens) for tokens in prompts]
        return samples * sum(each), samples * len(prompts)

    async def probe(self, connection: "_Connection", method: str, path: str, body: bytes) -> None:
        if self.probes == "silent":
            return
        if self.probes == "failing":
            connection.write(json_answer(503, b"{}"))
            return
        if self.probes == "garbage":
            page = (
                b'\xff\x00nonsense{{{ 1e999\nvllm:cache_config_info{block_size="' if path == "/metrics" else b'{"data":{"id":['
            )
            connection.write(json_answer(200, page))
            return
        status, value = 200, self._page(path, body)
        if value is None:
            status, value = 404, {"detail": "Not Found"}
        if path == "/tokenize" or path.endswith("input_tokens"):
            await asyncio.sleep(0.002)  # long enough to leave while the prompt is counted
        connection.write(json_answer(status, value.encode() if isinstance(value, str) else json.dumps(value).encode()))
        if path == "/metrics" or (self.is_llama and path == "/props"):
            self.judge.page_was_read()

    def _page(self, path: str, body: bytes) -> Any:
        card = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": self.longest}
        if self.is_llama:
            card = {"id": self.model, "owned_by": "llamacpp", "meta": {"n_ctx": self.blocks}}
        match path:
            case "/v1/models":
                return {"object": "list", "data": [card]}
            case "/version" if not self.is_llama:
                return {"version": "0.32.0+cpu"}
            case "/metrics":
                return self._llama_metrics() if self.is_llama else self._vllm_metrics()
            case "/props" if self.is_llama:
                return {"default_generation_settings": {"n_ctx": self.blocks}, "total_slots": self.slots, "build_info": "b1"}
            case "/health":
                return {"status": "ok"}
            case "/tokenize":
                asked = json.loads(body)
                tokens = _prompts(asked if "messages" in asked or "prompt" in asked else {"prompt": asked["content"]})[0]
                return {"count": tokens, "max_model_len": self.context, "tokens": [1] * tokens}
            case "/v1/chat/completions/input_tokens" if self.is_llama:
                return {"input_tokens": _prompts(json.loads(body))[0]}
            case _:
                return None

    def _llama_metrics(self) -> str:
        return f"llamacpp:requests_processing {self.judge.open}\nllamacpp:requests_deferred 0\n"

    def _vllm_metrics(self) -> str:
        labels = f'engine="0",model_name="{self.model}"'
        usage = min(1.0, (self.judge.blocks // 2 + self.foreign_blocks) / self.blocks)
        contexts = -(-self.context // BLOCK_TOKENS)
        tokens = int((self.blocks + 1) / contexts * self.context)
        info = f'block_size="{BLOCK_TOKENS}",engine="0",kv_cache_size_tokens="{tokens}",num_gpu_blocks="{self.blocks + 1}"'
        return (
            f"process_start_time_seconds {self._started!r}\n"
            f"vllm:num_requests_running{{{labels}}} {self.judge.open}.0\n"
            f"vllm:num_requests_waiting{{{labels}}} 0.0\n"
            f"vllm:kv_cache_usage_perc{{{labels}}} {usage!r}\n"
            f"vllm:num_preemptions_total{{{labels}}} 0.0\n"
            f"vllm:cache_config_info{{{info}}} 1.0\n"
        )

    async def answer_uncounted(self, connection: "_Connection", number: int) -> None:
        """Answer a call that takes no blocks as its plan says."""
        plan = self.plan_of(number)
        await Performance(connection, plan, {"stream_options": {"include_usage": plan.wants_usage}}).play()

    async def complete(self, connection: "_Connection", number: int, body: bytes) -> None:
        """Answer one request as its plan says."""
        plan = self.plan_of(number)
        asked = json.loads(body)
        prompts = _prompts(asked)
        cap = asked.get("max_completion_tokens") or asked.get("max_tokens") or 0
        if max(prompts) >= self.longest or cap > self.longest:
            connection.write(json_answer(400, json.dumps({"error": {"message": "too long", "code": 400}}).encode()))
            return
        ticket = self.judge.opened(number, *self.needs_of(asked))
        connection.holds = ticket
        self.served += 1
        try:
            await Performance(connection, plan, asked).play()
        finally:
            self.judge.ended(ticket)
            connection.holds = None


def _prompts(asked: dict[str, Any]) -> list[int]:
    """Tokens of each prompt: ids count themselves, text a quarter of its bytes."""
    if "messages" in asked:
        return [3 + sum(-(-len(message["content"]) // 4) for message in asked["messages"])]
    prompt = asked["prompt"]
    if isinstance(prompt, str):
        return [-(-len(prompt) // 4)]
    return [len(each) for each in prompt] if isinstance(prompt[0], list) else [len(prompt)]


class _Connection(asyncio.Protocol):
    """Reads requests, one at a time, and has each of them answered by a task."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser: Any = None
        self._url = b""
        self._plan: int | None = None
        self._body: list[bytes] = []
        self.holds: int | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self.gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def leave(self, *, reset: bool) -> None:
        """Close, by a reset or in an orderly way. What was worked on here has ended with that."""
        self._end()
        if self._transport is None or self._transport.is_closing():
            return
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def _end(self) -> None:
        if self.holds is not None:
            self._engine.judge.ended(self.holds)
            self.holds = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._engine.connections.add(self)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def eof_received(self) -> None:
        """A half-closed client counts as gone; returning None closes our side as well."""
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._engine.connections.discard(self)
        self._transport = None
        self._parser = None
        self.gone.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._url, self._plan, self._body = b"", None, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-plan":
            self._plan = int(value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        work: Awaitable[None]
        if self._plan is None:
            path = self._url.partition(b"?")[0].decode("latin-1")
            work = self._engine.probe(self, self._parser.get_method().decode(), path, body)
        elif self._url.startswith(b"/tokenize"):
            work = self._engine.answer_uncounted(self, self._plan)
        else:
            work = self._engine.complete(self, self._plan, body)
        task = asyncio.ensure_future(work)
        self._engine.tasks.add(task)
        task.add_done_callback(self._engine.tasks.discard)
