"""Generated chats as agents hold them: system text, tools, tool calls and their results, contents in parts, many scripts."""

import json
import random
from typing import Any

from support.texts import texts

_NAMES = ("search", "read_file", "run", "weather", "sql")


def _schema(chance: random.Random, words: list[str]) -> dict[str, Any]:
    properties = {
        f"arg{number}": {"type": chance.choice(("string", "integer", "boolean")), "description": chance.choice(words)}
        for number in range(chance.randrange(4))
    }
    return {"type": "object", "properties": properties, "required": list(properties)[:1]}


def _tool(chance: random.Random, words: list[str]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": chance.choice(_NAMES), "parameters": _schema(chance, words)}
    if chance.random() < 0.8:
        function["description"] = chance.choice(words)
    if chance.random() < 0.2:
        function["strict"] = chance.random() < 0.5
    return {"type": "function", "function": function}


def _content(chance: random.Random, words: list[str]) -> Any:
    if chance.random() < 0.2:
        return [{"type": "text", "text": chance.choice(words)} for _ in range(chance.randrange(1, 4))]
    return chance.choice(words)


def _turns(chance: random.Random, words: list[str], *, with_tools: bool) -> list[dict[str, Any]]:
    """What a user says, and what comes of it."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": _content(chance, words)}]
    for _ in range(chance.choice((0, 0, 1, 2)) if with_tools else 0):
        calls = [
            {
                "id": f"call_{chance.randrange(10**6)}",
                "type": "function",
                "function": {
                    "name": chance.choice(_NAMES),
                    "arguments": json.dumps({"q": chance.choice(words), "n": 1.5}, ensure_ascii=chance.random() < 0.5),
                },
            }
            for _ in range(chance.randrange(1, 3))
        ]
        turns.append({"role": "assistant", "content": chance.choice((None, "", chance.choice(words))), "tool_calls": calls})
        turns += [{"role": "tool", "tool_call_id": call["id"], "content": _content(chance, words)} for call in calls]
    turns.append({"role": "assistant", "content": _content(chance, words)})
    return turns


def chats(number: int, *, seed: int = 1, turns: int = 3) -> list[dict[str, Any]]:
    """So many chat bodies without a model, each ending with the user; two of three have tools. The same for the same seed."""
    chance = random.Random(seed)
    words = [text.replace("\x00", "") or "a" for text in texts(400, seed=seed) if len(text) < 50]
    found: list[dict[str, Any]] = []
    for index in range(number):
        with_tools = index % 3 != 0
        messages: list[dict[str, Any]] = []
        if chance.random() < 0.5:
            messages.append({"role": "system", "content": _content(chance, words)})
        for _ in range(chance.randrange(turns)):
            messages += _turns(chance, words, with_tools=with_tools)
        messages.append({"role": "user", "content": _content(chance, words)})
        body: dict[str, Any] = {"messages": messages}
        if with_tools:
            body["tools"] = [_tool(chance, words) for _ in range(chance.randrange(1, 4))]
        found.append(body)
    return found
