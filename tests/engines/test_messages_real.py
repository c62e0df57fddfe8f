"""Prompts of Messages as a real engine counts them, against what the same body is run with: KVGATE_TEST_VLLM=http://... and
so on. A model whose template renders tools shows more."""

import json
import os
import random
from typing import Any

import pytest

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.counting import ExactCounter
from gateway.backends.probe import Prober
from gateway.backends.roster import Roster
from gateway.clock import MonotonicClock
from gateway.core.names import BackendName
from gateway.dialects import DIALECTS
from gateway.tokens.bound import prompt_bound
from support.http_client import post
from support.scripted_engine import NO_TLS

A = BackendName("a")
MESSAGES = DIALECTS["/v1/messages"]
CHATS = 200
WORDS = ("hi", "get_weather", "é", "中文", "😀", "\n", " ", '{"a": 1}', "\t", "<|im_end|>", "e\u0301", "\x1b", "naïve", "'\"")


class Generated:
    """Bodies with everything that is rendered: system texts, tools, calls, answers, thinking, formats. One seed, one list."""

    def __init__(self, seed: int, model: str) -> None:
        self._dice = random.Random(seed)
        self._model = model

    def text(self, most: int = 8) -> str:
        return "".join(self._dice.choice(WORDS) for _ in range(self._dice.randint(1, most)))

    def value(self, depth: int = 2) -> Any:
        kind = self._dice.random()
        if depth == 0 or kind < 0.4:
            return self._dice.choice([self.text(3), 7, 1.5, None, True])
        if kind < 0.7:
            return [self.value(depth - 1) for _ in range(self._dice.randint(0, 3))]
        return {self.text(2): self.value(depth - 1) for _ in range(self._dice.randint(0, 3))}

    def schema(self) -> dict[str, Any]:
        names = range(self._dice.randint(0, 4))
        return {"type": "object", "properties": {f"p{name}": {"type": "string", "description": self.text()} for name in names}}

    def turns(self, number: int) -> list[dict[str, Any]]:
        kind = self._dice.random()
        if kind < 0.4:
            return [{"role": "user", "content": self.text()}]
        if kind < 0.6:
            return [{"role": "user", "content": [self.block() for _ in range(self._dice.randint(1, 3))]}]
        if kind < 0.8:
            return [{"role": "assistant", "content": self.text()}, {"role": "user", "content": self.text()}]
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "t0", "input": {self.text(2): self.value()}}
        thought = {"type": "thinking", "thinking": self.text(), "signature": "ab"}
        answer = self._dice.choice([self.text(), [self.block(), self.block()]])
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": answer}
        return [
            {"role": "assistant", "content": [thought, self.block(), call]},
            {"role": "user", "content": [result, self.block()]},
        ]

    def block(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text()}

    def body(self) -> dict[str, Any]:
        dice = self._dice
        messages = [turn for number in range(dice.randint(1, 4)) for turn in self.turns(number)]
        body: dict[str, Any] = {"model": self._model, "max_tokens": 1, "messages": messages}
        if dice.random() < 0.5:
            body["system"] = dice.choice([self.text(), [self.block(), self.block()]])
        if dice.random() < 0.6:
            tools = range(dice.randint(1, 4))
            body["tools"] = [{"name": f"t{n}", "description": self.text(), "input_schema": self.schema()} for n in tools]
            body["tool_choice"] = {"type": dice.choice(["auto", "none"])}
        if dice.random() < 0.3:
            body["thinking"] = {"type": dice.choice(["disabled", "adaptive"])}
        if dice.random() < 0.2:
            body["output_config"] = {"effort": "low"}
        return body


@pytest.mark.engines
@pytest.mark.parametrize("variable", ["KVGATE_TEST_VLLM", "KVGATE_TEST_LLAMA_CPP"])
async def test_every_count_is_what_the_engine_runs_and_no_bound_is_below_it(variable: str) -> None:
    url = os.environ.get(variable)
    if url is None:
        pytest.skip(f"{variable} names no server")
    roster = Roster(
        [BackendSpec(A, url)], prober=Prober(tls=NO_TLS, limit_s=60.0), clock=MonotonicClock(), queue_timeout_s=60.0
    )
    counted = 0
    try:
        await roster.look()
        counter = ExactCounter(roster)
        generated = Generated(5, roster.watch(A).view.models[0])
        for _ in range(2 * CHATS):
            body = generated.body()
            answer = await post(url, MESSAGES.path, body)
            if answer.status != 200:
                continue  # beyond the context of a tiny model, or tools before a server that was started without
            request = MESSAGES.read_request(json.dumps(body).encode())
            usage = answer.json()["usage"]
            cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
            assert await counter.count(A, request) == (usage["input_tokens"] + cached,), body
            bound = prompt_bound(request.prompts[0])
            assert bound is not None
            assert bound >= usage["input_tokens"] + cached, body
            counted += 1
            if counted == CHATS:
                break
    finally:
        await roster.stop()
    assert counted == CHATS, "the server refuses most of what it is asked"
