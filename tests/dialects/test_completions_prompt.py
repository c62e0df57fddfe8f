"""Large prompts are counted without being read into objects, and come out as the small ones do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.dialects import DIALECTS, completions_prompt
from gateway.dialects.completions_prompt import COUNT_BYTES, MAX_PROMPTS, Prompts, read_prompts
from gateway.dialects.openai_body import MEMBER_LIMIT_BYTES

IDS = st.lists(st.integers(0, 200_000), max_size=6)
PROMPTS = st.one_of(
    IDS,
    st.lists(IDS, max_size=5),
    st.lists(st.text(max_size=8), max_size=5),
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=3), IDS, st.none(), st.floats(allow_nan=False)), max_size=5),
)


def outcome(raw: bytes) -> Prompts | str:
    try:
        return read_prompts(raw, suffix=None, embeds=b"null")
    except InvalidRequest as error:
        return str(error.param)


@settings(max_examples=400, deadline=None)
@given(prompt=PROMPTS, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_the_large_way_and_the_small_way_find_the_same(prompt: object, indent: int | None, ascii_only: bool) -> None:
    raw = json.dumps(prompt, indent=indent, ensure_ascii=ascii_only).encode()
    small = outcome(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions_prompt, "COUNT_BYTES", 0)
        assert outcome(raw) == small


def test_a_million_ids_are_a_million_tokens() -> None:
    ids = json.dumps(list(range(1_000_000))).encode()
    assert [prompt.token_ids for prompt in read_prompts(ids, suffix=None, embeds=b"null").prompts] == [1_000_000]
    lists = json.dumps([[1] * 40_000, [2] * 10, [3]]).encode()
    assert len(lists) > COUNT_BYTES
    assert [prompt.token_ids for prompt in read_prompts(lists, suffix=None, embeds=b"null").prompts] == [40_000, 10, 1]


@pytest.mark.parametrize("entry", ["a", [1]])
def test_more_prompts_than_anybody_can_hold_are_refused_before_they_are_made(entry: object) -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_PROMPTS)):
        read_prompts(json.dumps([entry] * (MAX_PROMPTS + 1)).encode(), suffix=None, embeds=b"null")
    assert len(read_prompts(json.dumps([entry] * MAX_PROMPTS).encode(), suffix=None, embeds=b"null").prompts) == MAX_PROMPTS


def test_so_are_tensors() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_prompts(b"null", suffix=None, embeds=json.dumps(["x"] * (MAX_PROMPTS + 1)).encode())
    assert refused.value.param == "prompt_embeds"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_sampling_parameter_of_megabytes_is_refused_unread(path: str) -> None:
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    bias = json.dumps({str(number): 1 for number in range(MEMBER_LIMIT_BYTES // 8)})
    with pytest.raises(InvalidRequest) as refused:
        DIALECTS[path].read_request((json.dumps(body)[:-1] + f', "logit_bias": {bias}}}').encode())
    assert refused.value.param == "logit_bias"


LARGE = "word " * 250_000


def test_what_a_large_text_holds_at_least_is_known_unless_the_engine_is_asked_to_cut_it() -> None:
    chat, completions = DIALECTS["/v1/chat/completions"], DIALECTS["/v1/completions"]
    for dialect, body in ((chat, {"messages": [{"role": "user", "content": LARGE}]}), (completions, {"prompt": [LARGE, "a"]})):
        (first, *_) = dialect.read_request(json.dumps(body).encode()).prompts
        assert 0 < first.least_text_bytes <= len(LARGE) <= first.text_bytes
        (first, *_) = dialect.read_request(json.dumps(body | {"truncate_prompt_tokens": 10}).encode()).prompts
        assert first.least_text_bytes == 0
    escaped = json.dumps({"messages": [{"role": "user", "content": "é" * 300_000}, {"role": "user"}]}).encode()
    (prompt,) = chat.read_request(escaped).prompts
    assert 0 < prompt.least_text_bytes <= 600_000


@pytest.mark.parametrize("messages", ["x" * 2_000_000, [1] * 1_000_000, [["x" * 2_000_000]]])
def test_large_messages_that_are_no_list_of_objects_are_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        DIALECTS["/v1/chat/completions"].read_request(json.dumps({"messages": messages}).encode())
    assert refused.value.param == "messages"
