"""The toy tokenizer and the words it is fed with."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from gateway.simulator.toy_text import VOCABULARY, answer_text, count_tokens, natural_length, render_chat, token_ids


@given(st.text())
def test_a_text_never_has_more_tokens_than_bytes(text: str) -> None:
    ids = token_ids(text)
    assert len(ids) == count_tokens(text) <= len(text.encode("utf-8", "surrogatepass"))
    assert all(0 <= token < VOCABULARY for token in ids)
    assert ids == token_ids(text)


@given(st.integers(0, 2**32), st.integers(0, 50), st.integers(0, 50))
def test_an_answer_is_the_same_however_it_is_cut(seed: int, first: int, second: int) -> None:
    whole = answer_text(seed, 0, first + second)
    assert answer_text(seed, 0, first) + answer_text(seed, first, second) == whole


def test_output_counts_the_same_as_part_of_the_next_prompt() -> None:
    assert count_tokens(answer_text(7, 0, 123)) == 123


def test_the_chat_template_renders_parts_tools_and_tool_calls() -> None:
    plain = render_chat([{"role": "user", "content": "hello"}])
    assert plain == "<|user|>hello<|end|>\n<|assistant|>"
    assert render_chat([{"role": "user", "content": [{"type": "text", "text": "hello"}]}]) == plain
    assert "lookup" in render_chat([{"role": "user", "content": "hello"}], [{"function": {"name": "lookup"}}])
    assert "lookup" in render_chat([{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "lookup"}}]}])


def test_natural_lengths_have_the_mean_that_was_asked_for() -> None:
    lengths = [natural_length(seed, 200) for seed in range(4000)]
    assert min(lengths) >= 1
    assert 190 < statistics.mean(lengths) < 210
    assert lengths[:10] == [natural_length(seed, 200) for seed in range(10)]
