"""Case M-1: how did it end? Each request once, under its own name, in state, metrics and log alike."""

import asyncio
import json
from collections import Counter

import pytest

from support.bench import BUDGET_BLOCKS, CHAT, COMPLETIONS, Bench, block_body, chat_body
from support.fake_upstream import answer, eventually, never_answer
from support.gates import held_head, held_stream
from support.http_client import Connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMES = 5


async def vanish_in_upload(bench: Bench) -> None:
    """Most of the body never comes."""
    before = (await bench.gateway.state()).received
    async with await Connection.open(bench.gateway.url) as client:
        whole = client.request_bytes("POST", CHAT, json.dumps(chat_body(content="x" * 1000)).encode())
        await client.send_raw(whole[:-900])
        state = await bench.state_where(lambda state: state.received > before, "its head was received")
        assert state.reading == 1
        client.vanish()


async def vanish_in_the_queue(bench: Bench) -> None:
    gate, tag = asyncio.Event(), bench.tag("m1-holder")
    bench.fake.script(tag, held_head(gate, answer(200, b"{}", [(b"content-type", b"application/json")])))
    async with (
        await bench.take(BUDGET_BLOCKS, tag) as holder,
        await bench.wait_in_line(4, bench.tag("m1-queued")) as client,
    ):
        client.vanish()
        await bench.state_where(lambda state: state.queued == 0, "it left the line")
        gate.set()
        assert (await holder.answer()).status == 200


async def vanish_before_the_head(bench: Bench) -> None:
    tag = bench.tag("m1-silent")
    bench.fake.script(tag, never_answer())
    async with await bench.take(4, tag) as client:
        client.vanish()
        await eventually(lambda: bench.fake.open_requests(tag) == 0)


async def vanish_in_the_stream(bench: Bench) -> None:
    tag = bench.tag("m1-stream")
    bench.fake.script(tag, held_stream(asyncio.Event()))
    async with await bench.open(COMPLETIONS, block_body(4, stream=True), tag=tag) as client:
        await client.head()
        await client.read_until(b"before-0")
        client.vanish()
        await eventually(lambda: bench.fake.open_requests(tag) == 0)


WAYS = {
    "client_gone_upload": vanish_in_upload,
    "client_gone_queued": vanish_in_the_queue,
    "client_gone_waiting": vanish_before_the_head,
    "client_gone_streaming": vanish_in_the_stream,
}


async def test_m1_every_goodbye_is_counted_once_with_its_phase(bench: Bench) -> None:
    before, scraped_before = await bench.idle(), await bench.gateway.metrics()

    def all_logged() -> Counter[str]:
        return Counter(event["outcome"] for event in bench.gateway.log_events if "outcome" in event)

    await eventually(lambda: all_logged().total() == before.received)
    logged_before = all_logged()
    for way in WAYS.values():
        for _ in range(TIMES):
            await way(bench)
    after, scraped = await bench.idle(), await bench.gateway.metrics()

    wanted = dict.fromkeys(WAYS, TIMES) | {"completed": TIMES}  # the holders of the queue's case ended well
    rose = {name: count - before.outcomes.get(name, 0) for name, count in after.outcomes.items()}
    assert {name: count for name, count in rose.items() if count} == wanted
    assert after.received - before.received == sum(wanted.values())

    counted = scraped.by("kvgate_requests_total", "outcome")
    earlier = scraped_before.by("kvgate_requests_total", "outcome")
    assert {name: total - earlier.get(name, 0) for name, total in counted.items() if total != earlier.get(name, 0)} == wanted
    # State and metrics tell the same story, and so do the tenants' sums.
    assert {name: total for name, total in counted.items() if total} == after.outcomes
    tenants = scraped.by("kvgate_tenant_requests_total", "outcome")
    assert {name: total for name, total in tenants.items() if total} == after.outcomes

    # One log line for each, by the same name.
    def logged() -> Counter[str]:
        return all_logged() - logged_before

    await eventually(lambda: logged().total() >= sum(wanted.values()))
    assert logged() == wanted
    await bench.end_case()


async def test_m1_what_waited_and_what_was_held_shows_in_the_metrics_while_it_lasts(bench: Bench) -> None:
    gate, tag = asyncio.Event(), bench.tag("m1-held")
    bench.fake.script(tag, held_head(gate, answer(200, b"{}", [(b"content-type", b"application/json")])))
    async with (
        await bench.take(BUDGET_BLOCKS, tag) as holder,
        await bench.wait_in_line(4, bench.tag("m1-waiter")) as waiter,
    ):
        during = await bench.gateway.metrics()
        assert during.total("kvgate_budget_blocks") == BUDGET_BLOCKS
        assert during.total("kvgate_reserve_blocks") == 0
        assert during.total("kvgate_held_blocks") == during.total("kvgate_worst_case_blocks") == BUDGET_BLOCKS
        assert during.total("kvgate_in_flight") == 1
        assert during.total("kvgate_queue_requests", lane="standard") == 1
        assert during.total("kvgate_queue_blocks", lane="standard") == 4
        assert during.total("kvgate_backend_up") == 1
        gate.set()
        assert (await holder.answer()).status == (await waiter.answer()).status == 200
    await bench.idle()
    after = await bench.gateway.metrics()
    for name in ("kvgate_held_blocks", "kvgate_in_flight", "kvgate_queue_requests", "kvgate_queue_blocks"):
        assert after.has(name)
        assert after.total(name) == 0, name
    assert after.total("kvgate_queue_wait_seconds_count", outcome="granted") >= 2
    await bench.end_case()
