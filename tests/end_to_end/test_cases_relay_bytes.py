"""Cases R-7, R-8 and R-9: what the client sees, byte for byte: no invented end, no dressed-up error, no event too many."""

import json
from collections import Counter
from typing import Any

import pytest

from support.bench import CHAT, COMPLETIONS, MODEL, Bench, chat_body, running_bench
from support.endings import AFTER, BEFORE, is_visibly_broken, rise
from support.fake_engine import forwarded
from support.fake_upstream import Behaviour, Header, answer, chunk, head, send_raw
from support.gates import DONE, EVENT_STREAM, chat_event, usage_event
from support.http_client import Broken

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Header = (b"content-type", b"application/json")


# --


ROLE = chunk(chat_event(""))
CUTS = {
    "reset": send_raw(head(200, EVENT_STREAM) + ROLE, chunk(chat_event("one ")), then="reset"),
    "closed without the last chunk": send_raw(head(200, EVENT_STREAM) + ROLE, chunk(chat_event("one ")), then="close"),
    "closed within a chunk": send_raw(head(200, EVENT_STREAM) + ROLE, b"40\r\ndata: {", then="close"),
    "closed within an event": send_raw(head(200, EVENT_STREAM) + ROLE, chunk(b'data: {"choi'), then="close"),
    "tidy, within an event": send_raw(head(200, EVENT_STREAM) + ROLE, chunk(b'data: {"choi') + chunk(b"")),
    "tidy, without its end mark": send_raw(head(200, EVENT_STREAM) + ROLE, chunk(chat_event("one ")) + chunk(b"")),
    "until the close, without its end mark": send_raw(
        head(200, [EVENT_STREAM[0]]) + chat_event(""), chat_event("one "), then="close"
    ),
}


@pytest.mark.parametrize("name", CUTS)
async def test_r7_a_cut_stream_does_not_look_complete(bench: Bench, name: str) -> None:
    before, tag = await bench.idle(), bench.tag("r7")
    bench.fake.script(tag, CUTS[name])
    found = await bench.post(CHAT, chat_body(64, stream=True), tag=tag)
    assert found.status == 200
    assert is_visibly_broken(found), found
    assert found.body.startswith(chat_event(""))
    after = await bench.idle()
    assert rise(before.outcomes, after.outcomes) == {AFTER: 1}
    await bench.end_case()


async def test_r7_a_cut_plain_answer_does_not_look_complete(bench: Bench) -> None:
    before, tag = await bench.idle(), bench.tag("r7")
    bench.fake.script(tag, send_raw(head(200, [JSON, (b"content-length", b"1000")]) + b'{"id":', then="close"))
    async with await bench.open(CHAT, chat_body(64), tag=tag) as client:
        try:
            found = await client.answer()
        except Broken:
            pass  # nothing at all had been relayed
        else:
            assert not found.is_tidy or found.status == 502, found
    after = await bench.idle()
    assert sum(rise(before.outcomes, after.outcomes).values()) == 1
    assert rise(before.outcomes, after.outcomes).keys() <= {AFTER, BEFORE}
    await bench.end_case()


# --


def as_sent(
    status: int, body: bytes, *headers: Header, framing: str = "length"
) -> tuple[Behaviour, int, bytes, tuple[Header, ...]]:
    return answer(status, body, headers, framing=framing), status, body, headers


ENGINE_ERROR = b'{"error": {"message": "kv \\u00e9", "type": "BadRequestError", "param": null, "code": 400}}'
ERROR_EVENT = (
    b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}\n\n'
)
DRESSED: dict[str, tuple[tuple[Behaviour, int, bytes, tuple[Header, ...]], str]] = {
    "400 in JSON": (as_sent(400, ENGINE_ERROR, JSON), "engine_refused"),
    "401 in JSON": (as_sent(401, ENGINE_ERROR, JSON, (b"www-authenticate", b"Bearer")), "engine_refused"),
    "422 in JSON, chunked": (as_sent(422, ENGINE_ERROR, JSON, framing="chunked"), "engine_refused"),
    "429 in JSON": (as_sent(429, ENGINE_ERROR, JSON, (b"retry-after", b"17")), "engine_refused"),
    "500 in JSON": (as_sent(500, ENGINE_ERROR, JSON), BEFORE),
    "502 in HTML": (as_sent(502, b"<html>bad</html>", (b"content-type", b"text/html; charset=latin-1")), BEFORE),
    "503 in JSON": (as_sent(503, ENGINE_ERROR, JSON, (b"retry-after", b"5")), BEFORE),
    "200 in JSON": (as_sent(200, b'{"object": "chat.completion", "choices": []}', JSON), "completed"),
    "error as first event": (as_sent(200, ERROR_EVENT, EVENT_STREAM[0], framing="chunked"), AFTER),
    "error as first event, then an end mark": (
        as_sent(200, ERROR_EVENT + DONE, EVENT_STREAM[0], framing="chunked"),
        AFTER,
    ),
    "error after an event, then an end mark": (
        as_sent(200, chat_event("one ") + ERROR_EVENT + DONE, EVENT_STREAM[0], framing="chunked"),
        AFTER,
    ),
}


@pytest.mark.parametrize("name", DRESSED)
async def test_r8_an_error_of_the_engine_arrives_as_it_was_sent(bench: Bench, name: str) -> None:
    (behaviour, status, body, headers), outcome = DRESSED[name]
    before, tag = await bench.idle(), bench.tag("r8")
    bench.fake.script(tag, behaviour)
    found = await bench.post(CHAT, chat_body(64, stream=True), tag=tag)
    assert (found.status, found.body, found.is_tidy) == (status, body, True)
    for header, value in headers:
        assert found.head.all(header.decode()) == [value.decode()]
    assert bench.arrivals(tag) == 1
    after = await bench.idle()
    assert rise(before.outcomes, after.outcomes) == {outcome: 1}
    await bench.end_case()


# --


ASKED: dict[str, tuple[dict[str, Any], bool]] = {
    # what the client sends, and whether it is to see the usage event
    "no options": ({"stream": True}, False),
    "no options on a plain request": ({"stream": False}, False),
    "neither": ({}, False),
    "options of null": ({"stream": True, "stream_options": None}, False),
    "empty options": ({"stream": True, "stream_options": {}}, False),
    "asked not to": ({"stream": True, "stream_options": {"include_usage": False}}, False),
    "asked not to, beside other keys": (
        {"stream": True, "stream_options": {"continuous_usage_stats": False, "include_usage": False, "x": [1, {"y": "}"}]}},
        False,
    ),
    "other keys only": ({"stream": True, "stream_options": {"x": [1, {"include_usage": True}]}}, False),
    "asked for": ({"stream": True, "stream_options": {"include_usage": True}}, True),
    "asked for, beside other keys": ({"stream": True, "stream_options": {"x": 1, "include_usage": True}}, True),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("target", [CHAT, COMPLETIONS])
async def test_r9_only_those_who_asked_see_the_usage_event_and_all_usage_is_booked(
    bench: Bench, target: str, name: str
) -> None:
    more, is_to_see = ASKED[name]
    body = chat_body(64, **more) if target == CHAT else {"model": MODEL, "prompt": [1, 2], "max_tokens": 64, **more}
    events, tag = 3, bench.tag("r9")
    bench.fake.script(tag, bench.engine.completion(events=events))
    before = await bench.gateway.metrics()
    found = await bench.post(target, body, tag=tag)
    assert (found.status, found.is_tidy) == (200, True)
    sent = forwarded(bench.fake.tagged(tag)[0])
    if more.get("stream"):
        assert found.events[-1] == b"[DONE]"
        values = [json.loads(event) for event in found.events[:-1]]
        assert [value["choices"] == [] for value in values] == [False] * events + [True] * is_to_see
        options = {**(more.get("stream_options") or {}), "include_usage": True}
        assert sent == {**body, "stream_options": options}
    else:
        assert bench.fake.tagged(tag)[0].body == json.dumps(body).encode()
        assert found.json()["usage"]["completion_tokens"] == events
    await bench.idle()
    after = await bench.gateway.metrics()
    assert after.total("kvgate_output_tokens_total") - before.total("kvgate_output_tokens_total") == events
    assert after.total("kvgate_prompt_tokens_total") - before.total("kvgate_prompt_tokens_total") == (
        7 if target == CHAT else 2
    )
    await bench.end_case()


async def test_r9_the_usage_event_is_cut_out_wherever_the_chunks_are_cut(bench: Bench) -> None:
    whole = chat_event("one ") + chat_event("two ", "stop") + usage_event(7, 2) + DONE
    wanted = chat_event("one ") + chat_event("two ", "stop") + DONE
    seen: Counter[bytes] = Counter()
    for at in range(1, len(whole), 7):
        tag = bench.tag("r9-cut")
        bench.fake.script(
            tag,
            send_raw(head(200, EVENT_STREAM), chunk(whole[:at]), chunk(whole[at:]) + chunk(b"")),
        )
        found = await bench.post(CHAT, chat_body(64, stream=True), tag=tag)
        assert found.is_tidy
        seen[found.body] += 1
    assert list(seen) == [wanted]
    await bench.end_case()


async def test_r9_an_operator_can_forbid_asking() -> None:
    async with running_bench(KVGATE_ASK_USAGE="off") as own:
        tag = own.tag("r9-off")
        assert (await own.post(CHAT, chat_body(64, stream=True), tag=tag)).status == 200
        assert own.fake.tagged(tag)[0].body == json.dumps(chat_body(64, stream=True)).encode()
        await own.idle()
