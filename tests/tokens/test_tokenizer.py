"""Exact counts from a tokenizer's files: as the library counts the whole text, however it is cut and remembered."""

import copy
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.chat_template import CannotRender, ChatTemplate
from gateway.tokens.tokenizer import MOST_PIECES, Tokenizer
from support.chats import chats
from support.real_tokenizers import ANTHROPIC, DEEPSEEK, hugging_face_file
from support.texts import texts
from support.tiny_tokenizer import CHATML_WITH_TOOLS, SPECIAL, write_tokenizer

CHATML = ChatTemplate(CHATML_WITH_TOOLS, {})
KEYS = (
    "messages",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "function",
    "name",
    "tool_calls",
    "arguments",
    "user",
    "assistant",
)
PLAIN = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


def whole_of(tokenizer: Tokenizer, text: str) -> int:
    """As the library counts it, without a cut."""
    return len(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)


def flagged(folder: Path, into: Path, **flags: bool) -> Path:
    """The same tokenizer with other flags on its special tokens."""
    content = json.loads((folder / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token |= flags
    (into / "tokenizer.json").write_text(json.dumps(content))
    return into


def test_a_text_is_counted_with_what_begins_it(tokenizer: Tokenizer) -> None:
    assert tokenizer.count_text("") == 1
    assert tokenizer.count_text("hello") == 1 + whole_of(tokenizer, "hello")


def test_chats_are_counted_as_the_library_counts_their_text_whole(tokenizer: Tokenizer) -> None:
    template = tokenizer._templates["default"]
    assert tokenizer.cuts_at_marks
    for body in chats(300, seed=5):
        assert tokenizer.count_chat(body) == whole_of(tokenizer, template.render(body))
    assert tokenizer.cuts_at_marks


def test_callers_who_write_special_tokens_into_their_text_are_counted_alike(tokenizer: Tokenizer) -> None:
    chance = random.Random(3)
    template = tokenizer._templates["default"]
    pieces = [*SPECIAL, "<|im_", "start|>", "<", " ", "\n", *texts(40, seed=6)]
    for _ in range(500):
        text = "".join(chance.choices(pieces, k=chance.randrange(12)))
        body = {"messages": [{"role": "user", "content": text}]}
        assert tokenizer.count_chat(body) == whole_of(tokenizer, template.render(body))
    assert tokenizer.cuts_at_marks


@pytest.mark.parametrize("name", [DEEPSEEK, ANTHROPIC])
def test_a_real_models_special_tokens_are_cut_at_exactly(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(hugging_face_file(name).read_bytes())
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.cuts_at_marks
    chance = random.Random(4)
    marks = [token.content for token in tokenizer._tokenizer.get_added_tokens_decoder().values()]
    pieces = [*chance.sample(marks, min(len(marks), 50)), *texts(60, seed=7)]
    for _ in range(300):
        text = "".join(chance.choices(pieces, k=chance.randrange(1, 12)))
        assert tokenizer._rendered(text) == whole_of(tokenizer, text)
    assert tokenizer.cuts_at_marks


def test_a_growing_conversation_is_not_counted_anew(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    batch = tokenizer._batch

    def watched(pieces: Iterable[str]) -> list[int]:
        given = list(pieces)
        counted.extend(given)
        return batch(given)

    monkeypatch.setattr(tokenizer, "_batch", watched)
    monkeypatch.setattr(tokenizer, "_counts", 1)  # the next check against the whole is far away
    messages: list[dict[str, Any]] = []
    for turn in range(20):
        messages.append({"role": "user", "content": f"question {turn} " * 50})
        messages.append({"role": "assistant", "content": f"answer {turn} " * 50})
        before = len(counted)
        tokenizer.count_chat({"messages": messages})
        fresh = "".join(counted[before:])
        assert f"question {turn} " in fresh
        assert turn == 0 or f"question {turn - 1} " not in fresh


def test_an_answer_that_a_template_shortens_afterwards_is_counted_as_it_then_is(tmp_path: Path) -> None:
    """Templates drop the thoughts of earlier answers: what is remembered is the rendered text, so nothing is counted twice."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    )
    tokenizer = Tokenizer(write_tokenizer(tmp_path, template=template))
    first = [{"role": "assistant", "content": "<think>long thoughts " * 50 + "</think>yes"}]
    longer = [*first, {"role": "user", "content": "why?"}]
    alone = tokenizer.count_chat({"messages": first})
    assert tokenizer.count_chat({"messages": longer}) < alone
    assert tokenizer.count_chat({"messages": longer}) == whole_of(
        tokenizer, "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n"
    )


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
def test_special_tokens_that_reach_into_the_text_are_not_cut_at(folder: Path, tmp_path: Path, flags: dict[str, bool]) -> None:
    tokenizer = Tokenizer(flagged(folder, tmp_path, **flags))
    assert not tokenizer.cuts_at_marks
    text = "a <|im_start|> b\n<|im_end|>  c"
    assert tokenizer._rendered(text) == whole_of(tokenizer, text)


def test_a_cut_that_turns_out_wrong_is_given_up_and_the_whole_is_counted(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "_by_pieces", lambda text: 0)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    expected = whole_of(tokenizer, tokenizer._templates["default"].render(body))
    assert tokenizer.count_chat(body) == expected
    assert not tokenizer.cuts_at_marks
    assert tokenizer.count_chat(body) == expected


def test_what_is_remembered_is_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tokens.tokenizer.MOST_PIECES", 10)
    for number in range(50):
        tokenizer.count_chat({"messages": [{"role": "user", "content": str(number)}]})
    assert len(tokenizer._pieces) <= 10 < MOST_PIECES


def test_limits_that_a_file_carries_cut_nothing(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer(tmp_path).count_text("word " * 100) > 100


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "tokenizer.json is no tokenizer"),
        ({"tokenizer.json": "{}"}, "is no tokenizer"),
        ({"chat_template.jinja": "{% for %}"}, "the chat template cannot be read"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json cannot be read"),
    ],
)
def test_files_that_cannot_be_used_are_named(folder: Path, tmp_path: Path, files: dict[str, str], words: str) -> None:
    if files and "tokenizer.json" not in files:
        (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("files", "with_tools"),
    [
        ({"tokenizer_config.json": json.dumps({"chat_template": PLAIN})}, False),
        ({"chat_template.json": json.dumps({"chat_template": PLAIN})}, False),
        ({"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": PLAIN}]})}, False),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "tool_use", "template": PLAIN}]})},
            True,
        ),
    ],
)
def test_a_template_is_found_where_models_keep_it(
    folder: Path, tmp_path: Path, files: dict[str, str], with_tools: bool
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    tokenizer = Tokenizer(tmp_path)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    if with_tools:
        body["tools"] = [{"type": "function", "function": {"name": "f"}}]
    assert tokenizer.count_chat(body) == whole_of(tokenizer, "<|im_start|>user\nhi<|im_end|>\n")


def test_without_a_template_only_texts_are_counted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer(tmp_path)
    assert not tokenizer.has_template
    assert tokenizer.count_text("hi") > 1
    with pytest.raises(CannotRender):
        tokenizer.count_chat({"messages": [{"role": "user", "content": "hi"}]})


# -- what a template is given


def render(source: str, messages: list[dict[str, Any]], **members: Any) -> str:
    given = {"messages": messages, **members}
    before = copy.deepcopy(given)
    found = ChatTemplate(source, {"bos_token": "<s>"}).render(given)
    assert given == before
    return found


USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("source", "messages", "members", "text"),
    [
        ("{{ bos_token }}{{ unknown }}", USER, {}, "<s>"),
        ("{% if add_generation_prompt %}>{% endif %}", USER, {}, ">"),
        ("{% if add_generation_prompt %}>{% endif %}", USER, {"add_generation_prompt": False}, ""),
        ("{{ x }}", USER, {"chat_template_kwargs": {"x": 7}}, "7"),
        ("{{ reasoning_effort }} {{ enable_thinking }}", USER, {"reasoning_effort": "low"}, "low True"),
        ("{{ tools | tojson }}", USER, {}, "null"),
        (
            "{{ tools[0] | tojson }}",
            USER,
            {"tools": [{"function": {"parameters": {}, "name": "f", "foreign": 1}, "type": "function"}]},
            '{"type": "function", "function": {"name": "f", "description": null, "parameters": {}}}',
        ),
        ("{{ '<é>' | tojson }}", USER, {}, '"<é>"'),
        (
            "{{ messages[0].content }}",
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            {},
            "a\nb",
        ),
        (
            "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}",
            [{"role": "user", "content": "a"}],
            {},
            "[a]",
        ),
        (
            "{{ messages[0].tool_calls[0].function.arguments.x }}",
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 5}'}}]}],
            {},
            "5",
        ),
        (
            "{{ messages[0].tool_calls[0].function.arguments | tojson }}",
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "no json"}}]}],
            {},
            "{}",
        ),
        ("{{ 'tool_calls' in messages[0] }}", [{"role": "assistant", "content": "x", "tool_calls": []}], {}, "False"),
        ("{% generation %}x{% endgeneration %}{% for i in range(9) %}{% break %}{% endfor %}", USER, {}, "x"),
    ],
)
def test_a_template_is_given_what_the_engine_gives_it(
    source: str, messages: list[dict[str, Any]], members: dict[str, Any], text: str
) -> None:
    assert render(source, messages, **members) == text


@pytest.mark.parametrize(
    ("messages", "members"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], {}),
        ([{"role": "user", "content": 7}], {}),
        ([{"content": "x"}], {}),
        ([{"role": "developer", "content": "x"}], {}),
        ([{"role": "system", "content": "x-anthropic-billing-header: cch=1"}], {}),
        ([{"role": "assistant", "content": "x", "reasoning_content": "y"}], {}),
        ([{"role": "assistant", "tool_calls": [{"type": "custom"}]}], {}),
        (USER, {"continue_final_message": True}),
        (USER, {"chat_template": "{{ messages }}"}),
        (USER, {"chat_template_kwargs": [1]}),
        (USER, {"tools": [{"type": "web_search"}]}),
        (USER, {"tools": "all"}),
    ],
)
def test_what_engines_treat_in_their_own_ways_is_not_rendered(messages: list[dict[str, Any]], members: dict[str, Any]) -> None:
    with pytest.raises(CannotRender):
        render("{{ messages[0].content }}", messages, **members)


def test_a_template_that_refuses_a_conversation_gives_no_count() -> None:
    with pytest.raises(CannotRender):
        render("{{ raise_exception('roles must alternate') }}", USER)


@pytest.mark.parametrize("source", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ [].__init__.x }}"])
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(CannotRender):
        render(source, USER)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5) | st.fixed_dictionaries({"messages": st.lists(JSON, max_size=3)})
)
def test_any_body_is_rendered_or_is_not(body: dict[str, Any]) -> None:
    try:
        text = CHATML.render(body)
    except CannotRender:
        return
    assert isinstance(text, str)
