"""Records answers of real engines for the suites: `python tests/dialects/record.py vllm=http://... llama_cpp=http://...`

Each exchange is two files in `recorded/`: `<engine>_<word>_<scenario>.request.json`, the body as it was sent, and the
answer's body beside it, `.txt` for an event stream and `.json` for any other. Nothing of the gateway takes part. Engines
whose URL is not given are left out; run again, it writes the same exchanges anew. Answers differ in ids, times and, from
a random model, in every word: the suites look only at what they must have in common.

The tiny model of vLLM (`--served-model-name tiny`) has a context of 1,024 tokens, llama.cpp's slot of 512 or more. For
thinking and tools vLLM has to be started with `--reasoning-parser deepseek_r1 --enable-auto-tool-choice --tool-call-parser
hermes`, and the model's vocabulary needs the marks of both (`<think>`, `<tool_call>`). Servers that embed are named apart:
`vllm_embedder` (`--runner pooling --convert embed`) and `llama_cpp_embedder` (`--embeddings`).
"""

import http.client
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

RECORDED: Final = Path(__file__).parent / "recorded"
ANSWERS_WITHIN_S: Final = 120.0

MODELS: Final = {"vllm": "tiny", "llama_cpp": "smollm2", "vllm_embedder": "tiny", "llama_cpp_embedder": "smollm2"}
ENGINES: Final = ("vllm", "llama_cpp")
EMBEDDERS: Final = ("vllm_embedder", "llama_cpp_embedder")


@dataclass(frozen=True)
class Exchange:
    """What is asked, and of which engines. A scenario `refused` is one that the engine answers with an error.

    word: stands for the dialect in the names (see `support.dialect_samples`). body: without `model`, which is put in.
    """

    word: str
    path: str
    scenario: str
    body: dict[str, object]
    engines: tuple[str, ...] = ENGINES


_HELLO: Final = [{"role": "user", "content": "Say hello to the world, please."}]
_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"
_MESSAGES: Final = "/v1/messages"
_TOOLS: Final = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]},
    }
]
_RESPONSES: Final = "/v1/responses"
_EMBEDDINGS: Final = "/v1/embeddings"
_ASKED: Final = "Say hello to the world, please."
_FUNCTION: Final = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]},
}
_TURNS: Final = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is the weather in Bern?"}]},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Bern"}'},
    {"type": "function_call_output", "call_id": "c1", "output": 'It is 7 °C and "windy".'},
    {"type": "message", "role": "assistant", "content": "It is windy."},
    {"role": "user", "content": "And tomorrow?"},
]
_PICTURE: Final = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}

EXCHANGES: Final = (
    Exchange("chat", _CHAT, "plain", {"messages": _HELLO, "max_tokens": 4}),
    Exchange(
        "chat",
        _CHAT,
        "asked_usage",
        {"messages": _HELLO, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ),
    Exchange("completions", _COMPLETIONS, "plain", {"prompt": "Once upon a time", "max_tokens": 4}),
    Exchange(
        "completions",
        _COMPLETIONS,
        "asked_usage",
        {"prompt": "Once upon a time", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ),
    Exchange("messages", _MESSAGES, "plain", {"messages": _HELLO, "max_tokens": 4}),
    Exchange(
        "messages",
        _MESSAGES,
        "stream",
        {"system": "Be brief.", "messages": _HELLO, "max_tokens": 4, "stream": True, "thinking": {"type": "disabled"}},
    ),
    Exchange("messages", _MESSAGES, "thinking", {"messages": _HELLO, "max_tokens": 4, "stream": True}, ("vllm",)),
    Exchange(
        "messages",
        _MESSAGES,
        "tool",
        {
            "messages": _HELLO,
            "tools": _TOOLS,
            "tool_choice": {"type": "any"},
            "max_tokens": 60,
            "stream": True,
            "thinking": {"type": "disabled"},
        },
        ("vllm",),
    ),
    Exchange("responses", _RESPONSES, "plain", {"input": _ASKED, "instructions": "Be brief.", "max_output_tokens": 4}),
    Exchange("responses", _RESPONSES, "turns", {"input": _TURNS, "tools": [_FUNCTION], "max_output_tokens": 4}),
    Exchange(
        "responses",
        _RESPONSES,
        "stream",
        {"input": _HELLO, "max_output_tokens": 4, "stream": True, "reasoning": {"effort": "none"}},
    ),
    Exchange("responses", _RESPONSES, "thinking", {"input": _ASKED, "max_output_tokens": 4, "stream": True}, ("vllm",)),
    Exchange(
        "responses",
        _RESPONSES,
        "tool",
        {
            "input": _ASKED,
            "tools": [_FUNCTION],
            "tool_choice": "required",
            "max_output_tokens": 60,
            "stream": True,
            "reasoning": {"effort": "none"},
        },
        ("vllm",),
    ),
    Exchange("responses", _RESPONSES, "refused", {"input": _ASKED, "previous_response_id": "resp_0", "max_output_tokens": 4}),
    Exchange("embeddings", _EMBEDDINGS, "text", {"input": _ASKED}, EMBEDDERS),
    Exchange("embeddings", _EMBEDDINGS, "many", {"input": ["a", "Grüße, 世界 👋", "x " * 40]}, EMBEDDERS),
    Exchange("embeddings", _EMBEDDINGS, "ids", {"input": [[5, 6, 7], [8]], "encoding_format": "base64"}, EMBEDDERS),
    Exchange("embeddings", _EMBEDDINGS, "chat", {"messages": _HELLO}, ("vllm_embedder",)),
    Exchange("embeddings", _EMBEDDINGS, "refused", {"input": "word " * 1_100}, EMBEDDERS),
    Exchange("completion", "/completion", "plain", {"prompt": "Once upon a time", "n_predict": 4}, ("llama_cpp",)),
    Exchange("completion", "/completion", "stream", {"prompt": "Once upon", "n_predict": 4, "stream": True}, ("llama_cpp",)),
    Exchange(
        "completion",
        "/completion",
        "two_prompts",
        {"prompt": ["Once upon", [5, "a time"]], "n_predict": 3, "stream": True},
        ("llama_cpp",),
    ),
    Exchange("completion", "/completion", "lists", {"prompt": [[5, 6], "a"], "n_predict": 3}, ("llama_cpp",)),
    Exchange(
        "completion",
        "/completion",
        "fields",
        {"prompt": "Once", "n_predict": 3, "stream": True, "response_fields": ["content", "timings"]},
        ("llama_cpp",),
    ),
    Exchange("completion", "/completion", "refused", {"prompt": "Once", "n_cmpl": 99, "n_predict": 3}, ("llama_cpp",)),
    Exchange("alias", "/completions", "plain", {"prompt": "Once upon a time", "n_predict": 4}, ("llama_cpp",)),
    Exchange("alias", "/completions", "stream", {"prompt": "Once upon", "max_tokens": 4, "stream": True}, ("llama_cpp",)),
    Exchange("messages", _MESSAGES, "refused", {"messages": [{"role": "user", "content": [_PICTURE]}], "max_tokens": 4}),
)


def record(engine: str, url: str, exchange: Exchange) -> str:
    """Ask, and write both files. Returns a line for whoever looks on."""
    body = json.dumps({"model": MODELS[engine], **exchange.body}, ensure_ascii=False).encode()
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ANSWERS_WITHIN_S)
    try:
        connection.request("POST", exchange.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    kind = answer.headers.get_content_type()
    stem = f"{engine}_{exchange.word}_{exchange.scenario}"
    is_wanted = (answer.status >= 400) is exchange.scenario.endswith("refused")
    if is_wanted:
        (RECORDED / f"{stem}.request.json").write_bytes(body)
        (RECORDED / f"{stem}.{'txt' if kind == 'text/event-stream' else 'json'}").write_bytes(content)
    return f"{'recorded' if is_wanted else 'NOT recorded'} {stem}: {answer.status} {kind}, {len(content)} bytes"


def main(arguments: list[str]) -> int:
    urls = dict(argument.split("=", 1) for argument in arguments)
    if not urls or not set(urls) <= set(MODELS):
        print(f"usage: record.py {' '.join(f'[{engine}=URL]' for engine in MODELS)}", file=sys.stderr)
        return 2
    for engine, url in urls.items():
        for exchange in EXCHANGES:
            if engine in exchange.engines:
                print(record(engine, url, exchange))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
