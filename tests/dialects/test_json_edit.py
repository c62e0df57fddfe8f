"""Editing one member of a JSON object in place, beside json as the judge of what it means."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.json_edit import append_member, members, set_member

TEXT = st.text(alphabet=st.sampled_from('ab"\\{}[],: \n\té中😀'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(TEXT, VALUES, max_size=5), ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 2]))
def test_the_members_found_are_those_that_json_finds(body: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
    found = {member.key: json.loads(text[member.start : member.end]) for member in members(text)}
    assert found == body


@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(TEXT, VALUES, max_size=5), key=st.sampled_from(["a", "b", "cap"]), ascii_only=st.booleans())
def test_setting_a_member_changes_that_member_only(body: dict[str, object], key: str, ascii_only: bool) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only).encode()
    edited = set_member(text, key, b"7")
    assert json.loads(edited) == body | {key: 7}
    if key not in body:
        assert (
            edited.replace(b', "%s":7' % key.encode(), b"")
            .replace(b',"%s":7' % key.encode(), b"")
            .replace(b'"%s":7' % key.encode(), b"")
            == text
        )


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (b"{}", b'{"cap":7}'),
        (b" { } \n", b' { "cap":7} \n'),
        (b'{"a":{}}', b'{"a":{},"cap":7}'),
        (b'{"a":"{" }', b'{"a":"{" ,"cap":7}'),
        (b'{"a":{"cap":1}}', b'{"a":{"cap":1},"cap":7}'),
        (b'{"cap":null}', b'{"cap":7}'),
        (b'{"cap" : 1e5 ,"b":[{"cap":2}]}', b'{"cap" : 7 ,"b":[{"cap":2}]}'),
        (b'{"cap":1,"cap":{"x":[1,"}"]}}', b'{"cap":7,"cap":7}'),
        (b'{"c\\u0061p":"x\\"}"}', b'{"c\\u0061p":7}'),
        (b'{"b":"\\ud83d","cap":1}', b'{"b":"\\ud83d","cap":7}'),
        (b'{"b":%s,"cap":-1}' % (b"9" * 6_000), b'{"b":%s,"cap":7}' % (b"9" * 6_000)),
        (b'{"b":"\\"cap\\":1","\\\\":"\\\\","cap":true}', b'{"b":"\\"cap\\":1","\\\\":"\\\\","cap":7}'),
    ],
)
def test_only_the_value_of_the_member_is_replaced(text: bytes, edited: bytes) -> None:
    assert set_member(text, "cap", b"7") == edited


def test_a_member_is_appended_after_the_last_one() -> None:
    assert append_member(b'{"a":1\n}', "cap", b"7") == b'{"a":1\n,"cap":7}'


def test_a_body_of_megabytes_is_one_pass() -> None:
    heavy = b'{"m":[%s],"cap":null}' % b",".join([b'{"c":"' + b'\\n\\"{[' * 50 + b'"}'] * 10_000)
    assert set_member(heavy, "cap", b"7") == heavy[:-5] + b"7}"


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":12,"cap":5,"a":1}',
        b'{"a":1,"cap":5,"a":12}',
        b'{"a":"x" , "cap" : 5 , "a":"x","a":null}',
        b'{"\\u0061":1e5,"cap":5,"a":1}',
        b'{"a":{"b":1},"cap":5,"a":{"b":1,"c":2}}',
        b'{"cap":1.5,"b":"\\udc00","cap":1}',
    ],
)
def test_a_key_that_stands_twice_leads_nobody_astray(text: bytes) -> None:
    pairs = json.loads(text, object_pairs_hook=list)
    assert [(member.key, json.loads(text[member.start : member.end])) for member in members(text)] == [
        (key, dict(value) if isinstance(value, list) else value) for key, value in pairs
    ]
