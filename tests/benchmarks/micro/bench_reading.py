"""What is read of a request before its admission, its dialect and the bound on its prompt, and of a plain answer at its end."""

import json
from collections.abc import Callable

import pytest

from benchmarks.micro.measure import Measure
from benchmarks.proxies.bodies import ANSWER, request_body
from gateway.core.request import InferenceRequest
from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.dialect import Dialect, Watcher
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_watcher import PlainChoices
from gateway.tokens.bound import prompt_bound

KIB = 1024
SIZES = pytest.mark.parametrize("body_bytes", [KIB, 64 * KIB])


def messages_body(body_bytes: int) -> bytes:
    """The same conversation as Anthropic's clients send it."""
    chat = json.loads(request_body(body_bytes))
    system, *turns = chat["messages"]
    return json.dumps(chat | {"system": system["content"], "messages": turns}).encode()


@SIZES
@pytest.mark.parametrize(
    ("dialect", "make_body"), [(OpenAIChat(), request_body), (AnthropicMessages(), messages_body)], ids=["chat", "messages"]
)
def test_reading_a_request(benchmark: Measure, dialect: Dialect, make_body: Callable[[int], bytes], body_bytes: int) -> None:
    request = benchmark(dialect.read_request, make_body(body_bytes))
    assert isinstance(request, InferenceRequest)
    assert request.prompts[0].text_bytes > body_bytes / 2


@SIZES
def test_the_bound_on_a_prompt(benchmark: Measure, body_bytes: int) -> None:
    prompt = OpenAIChat().read_request(request_body(body_bytes)).prompts[0]
    bound = benchmark(prompt_bound, prompt)
    assert isinstance(bound, int)
    assert bound > prompt.text_bytes


def test_reading_a_plain_answer(benchmark: Measure) -> None:
    dialect = OpenAIChat()

    def read() -> Watcher:
        watcher = dialect.watcher(is_event_stream=False, hide_usage=False, content_encoding=None)
        watcher.feed(ANSWER)
        watcher.finish()
        return watcher

    watcher = benchmark(read)
    assert isinstance(watcher, PlainChoices)
    assert watcher.usage is not None
