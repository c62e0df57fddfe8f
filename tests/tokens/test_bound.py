"""The bound is never below the truth, even where every byte is a token."""

import json

import pytest

from gateway.core.request import InferenceRequest, Prompt
from gateway.dialects import DIALECTS
from gateway.tokens.bound import is_exact, prompt_bound

CHAT = DIALECTS["/v1/chat/completions"]
COMPLETIONS = DIALECTS["/v1/completions"]


def chat(messages: list[dict[str, object]], **members: object) -> int | None:
    body = json.dumps({"messages": messages, **members}, ensure_ascii=False).encode()
    return prompt_bound(CHAT.read_request(body).prompts[0])


def chatml_bytes(messages: list[dict[str, object]]) -> int:
    """Tokens of a ChatML template in a tokenizer that knows its marks and has no merges: a byte is a token."""
    return (
        sum(1 + len(f"{message['role']}\n{message['content']}".encode()) + 2 for message in messages) + 1 + len("assistant\n")
    )


@pytest.mark.parametrize("content", ["", "a", "ping", "中文 é 😀\n" * 50, "x" * 10_000])
@pytest.mark.parametrize("messages", [1, 2, 200])
def test_p7_a_tokenizer_of_single_bytes_stays_below_the_bound(content: str, messages: int) -> None:
    sent: list[dict[str, object]] = [{"role": "user", "content": content}] * messages
    bound = chat(sent)
    assert bound is not None
    assert chatml_bytes(sent) <= bound


def test_p7_two_hundred_messages_of_one_letter_are_far_more_than_their_text() -> None:
    bound = chat([{"role": "user", "content": "a"}] * 200)
    assert bound is not None
    assert bound >= 1_000


def test_token_ids_are_their_own_count() -> None:
    assert prompt_bound(Prompt(text_bytes=0, token_ids=7)) == 7


@pytest.mark.parametrize("text", ["", "a", "中", "x" * 100])
def test_a_plain_text_is_its_bytes_and_what_begins_it(text: str) -> None:
    (prompt,) = COMPLETIONS.read_request(json.dumps({"prompt": text}).encode()).prompts
    assert prompt_bound(prompt) == len(text.encode()) + 2


def test_a_prompt_whose_text_tells_nothing_has_no_bound() -> None:
    assert prompt_bound(Prompt(text_bytes=10, messages=1, media_parts=1)) is None
    assert chat([{"role": "user", "content": "a"}], chat_template="{{ messages }}") is None


def test_tools_add_what_a_template_says_about_them() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    without = chat([{"role": "user", "content": "a"}])
    with_one = chat([{"role": "user", "content": "a"}], tools=[tool])
    with_two = chat([{"role": "user", "content": "a"}], tools=[tool, tool])
    assert without is not None
    assert with_one is not None
    assert with_two is not None
    assert with_one - without > 400 > with_two - with_one > len(json.dumps(tool))


@pytest.mark.parametrize(("prompt", "exact"), [("[1]", True), ("[[1],[2]]", True), ('"a"', False), ('["a"]', False)])
def test_only_token_ids_are_exact(prompt: str, exact: bool) -> None:
    request: InferenceRequest = COMPLETIONS.read_request(b'{"prompt":%s}' % prompt.encode())
    assert is_exact(request) is exact
