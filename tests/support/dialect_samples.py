"""One row per dialect: what the suites must know of a wire format to hold all of them to the same promises.

A dialect joins with its row here, its bodies in `fuzz.bodies`, its requests in `dialects/record.py` and what that recorded.
"""

from dataclasses import dataclass
from functools import cache

from gateway.core.request import CapState
from gateway.dialects import DIALECTS
from gateway.dialects.dialect import Dialect, Watcher
from support.answers import RECORDED


@dataclass(frozen=True)
class Sample:
    """What one dialect's promises are tried on.

    word: stands in the names of its recorded answers, `<engine>_<word>_<scenario>`.
    body: the least body that is read, for the model `tiny` and without `stream`. cap: what is read of it.
    caps: the members that may hold the output cap; the first is the one that is written where none stands. Empty: the
    format has no output to cap. unset: what such a member holds before.
    stream, plain: the usage (prompt, output) of a recorded answer, by its name. A format without streams has none.
    asks_usage: usage comes in a stream only if it is asked for, in an event of its own.
    """

    word: str
    body: dict[str, object]
    caps: tuple[str, ...]
    plain: dict[str, tuple[int, int]]
    stream: dict[str, tuple[int, int]]
    asks_usage: bool = False
    unset: object = None
    cap: tuple[CapState, int | None] = (CapState.ABSENT, None)


SAMPLES: dict[str, Sample] = {
    "/v1/chat/completions": Sample(
        word="chat",
        body={"model": "tiny", "messages": [{"role": "user", "content": 'Say "hi" \n\t{[é中😀]}'}]},
        caps=("max_tokens", "max_completion_tokens"),
        plain={"vllm_chat_two_choices.json": (14, 8), "llama_cpp_chat.json": (32, 3)},
        stream={"vllm_chat_usage.txt": (14, 4), "llama_cpp_chat_usage.txt": (32, 4)},
        asks_usage=True,
    ),
    "/v1/completions": Sample(
        word="completions",
        body={"model": "tiny", "prompt": ["a", "b\\"]},
        caps=("max_tokens",),
        plain={"vllm_completions_two_prompts.json": (6, 8)},
        stream={"vllm_completions_usage.txt": (4, 4)},
        asks_usage=True,
    ),
    "/v1/responses": Sample(
        word="responses",
        body={"model": "tiny", "input": [{"role": "user", "content": 'Say "hi" \n\t{[é中😀]}'}]},
        caps=("max_output_tokens",),
        plain={
            "vllm_responses_plain.json": (38, 4),
            "vllm_responses_turns.json": (222, 4),
            "llama_cpp_responses_plain.json": (25, 4),
        },
        stream={
            "vllm_responses_stream.txt": (35, 4),
            "vllm_responses_thinking.txt": (25, 4),
            "vllm_responses_tool.txt": (149, 33),
            "llama_cpp_responses_stream.txt": (38, 4),
        },
    ),
    "/v1/embeddings": Sample(
        word="embeddings",
        body={"model": "tiny", "input": ["a", "b\\"]},
        caps=(),
        plain={
            "vllm_embedder_embeddings_text.json": (15, 0),
            "vllm_embedder_embeddings_many.json": (65, 0),
            "llama_cpp_embedder_embeddings_text.json": (8, 0),
            "llama_cpp_embedder_embeddings_many.json": (56, 0),
        },
        stream={},
        cap=(CapState.SET, 1),
    ),
    "/completion": Sample(
        word="completion",
        body={"model": "tiny", "prompt": ["a", [1, "b\\"]]},
        caps=("n_predict", "max_completion_tokens", "max_tokens"),
        plain={"llama_cpp_completion_plain.json": (4, 4), "llama_cpp_completion_lists.json": (3, 6)},
        stream={
            "llama_cpp_completion_stream.txt": (2, 4),
            "llama_cpp_completion_two_prompts.txt": (5, 6),
            "llama_cpp_completion_fields.txt": (1, 3),
        },
        unset=-1,
    ),
    "/completions": Sample(
        word="alias",
        body={"model": "tiny", "prompt": "a"},
        caps=("n_predict", "max_completion_tokens", "max_tokens"),
        plain={"llama_cpp_alias_plain.json": (4, 4)},
        stream={"llama_cpp_alias_stream.txt": (2, 4)},
    ),
    "/v1/messages": Sample(
        word="messages",
        body={"model": "tiny", "messages": [{"role": "user", "content": 'Say "hi" \n\t{[é中😀]}'}]},
        caps=("max_tokens",),
        plain={"vllm_messages_plain.json": (24, 4), "llama_cpp_messages_plain.json": (38, 4)},
        stream={
            "vllm_messages_stream.txt": (39, 4),
            "vllm_messages_thinking.txt": (24, 4),
            "vllm_messages_tool.txt": (144, 60),
            "llama_cpp_messages_stream.txt": (25, 4),
            "dynamo_messages_stream.txt": (37, 4),
        },
    ),
}

ALL: tuple[Dialect, ...] = tuple(DIALECTS.values())
STREAMING: tuple[Dialect, ...] = tuple(dialect for dialect in ALL if SAMPLES[dialect.path].stream)


def sample_of(dialect: Dialect) -> Sample:
    return SAMPLES[dialect.path]


@cache
def dialect_of(name: str) -> Dialect:
    """The dialect that a recorded answer, or request, is of."""
    words = name.split(".")[0].split("_")
    return next(DIALECTS[path] for path, sample in SAMPLES.items() if sample.word in words)


def watch_as(name: str, *, is_event_stream: bool, hide_usage: bool, content_encoding: str | None = None) -> Watcher:
    """Eyes for an answer such as the recorded one of that name."""
    return dialect_of(name).watcher(is_event_stream=is_event_stream, hide_usage=hide_usage, content_encoding=content_encoding)


def plain_answers() -> list[str]:
    """Names of the recorded answers that are no streams."""
    return sorted(path.name for path in RECORDED.glob("*.json") if not path.name.endswith(".request.json"))


def requests() -> list[str]:
    """Names of the recorded requests: `<answer's name less its ending>.request.json`."""
    return sorted(path.name for path in RECORDED.glob("*.request.json"))
