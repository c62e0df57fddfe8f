"""The console in a real Chromium before a real gateway: what happens is seen, and nothing else is asked of anybody.

With KVGATE_PICTURES set to a folder, each situation is left there as a picture, for somebody to look at.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.simulator.engine import EngineShape
from gateway.simulator.openai_requests import Served
from gateway.simulator.pace import Pace
from gateway.simulator.server import Simulator
from support.bench import BUDGET_BLOCKS, COMPLETIONS, Bench, block_body, running_bench
from support.browser import Browser, running_browser
from support.fake_engine import FakeEngine
from support.gates import held_stream
from support.gateway_process import running_gateway
from support.http_client import Connection, post
from support.programs import free_port

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

SECRETS = ("a prompt that nobody may read", "sk-a-key-of-a-caller")
LIVE = "return document.querySelector('#link').dataset.state === 'live'"
HELD = "return Number(document.querySelector('.bar').dataset.held) === arguments[0]"
ROWS = """
    return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map((row) =>
        [...row.children].map((cell) => cell.textContent))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own_bench() -> AsyncIterator[Bench]:
    """A gateway of the test's own, with a line of three."""
    async with running_bench(KVGATE_QUEUE_REQUESTS="3", watched=False) as running:
        yield running


async def open_console(browser: Browser, bench: Bench) -> None:
    await browser.take_log()
    await browser.take_requested()
    await browser.look()
    await browser.open(f"{bench.gateway.admin_url}/console")
    await browser.until(LIVE, "the console is live")


async def check_quiet(browser: Browser, admin_url: str) -> None:
    """It asked nobody but the gateway, nothing went wrong in it, and nothing secret is on it."""
    requested = await browser.take_requested()
    assert any(url.endswith("/console/events") for url in requested)
    assert [url for url in requested if not url.startswith(f"{admin_url}/")] == []
    assert await browser.take_log() == []
    page = await browser.run("return document.documentElement.outerHTML")
    for secret in SECRETS:
        assert secret not in page


async def picture(browser: Browser, name: str) -> None:
    folder = os.environ.get("KVGATE_PICTURES")
    if folder:
        await browser.picture(Path(folder) / f"{name}.png")


async def column(browser: Browser, section: str, number: int) -> list[str]:
    return [row[number] for row in await browser.run(ROWS, section)]


async def test_the_held_bar_moves_with_a_request_and_moves_back(browser: Browser, own_bench: Bench) -> None:
    await open_console(browser, own_bench)
    await browser.until(HELD, "nothing is held", 0)
    async with own_bench.everything_taken(BUDGET_BLOCKS // 2) as gate:
        await browser.until(HELD, "half is held", BUDGET_BLOCKS // 2)
        width = await browser.run("""
            const bar = document.querySelector('.bar'), held = bar.querySelector('.part-lane-0');
            return parseFloat(held.style.width);
        """)
        assert width == pytest.approx(50.0)
        label = await browser.run("return document.querySelector('.bar').getAttribute('aria-label')")
        assert f"{BUDGET_BLOCKS // 2} of {BUDGET_BLOCKS} blocks taken" in label
        assert len(await browser.run(ROWS, "#running")) == 1
        gate.set()
        await browser.until(HELD, "it was given back", 0)
    await browser.until("return document.querySelector('#running .empty').checkVisibility()", "nothing runs")
    await check_quiet(browser, own_bench.gateway.admin_url)


async def test_with_a_full_line_it_shows_who_waits_for_what_and_why_the_next_was_refused(
    browser: Browser, own_bench: Bench
) -> None:
    bench = own_bench
    await open_console(browser, bench)
    async with bench.everything_taken() as gate:
        waiters = [await bench.wait_in_line(4 + number, bench.tag("waits")) for number in range(3)]
        key = {"authorization": f"Bearer {SECRETS[1]}"}
        refused = await bench.post(COMPLETIONS, block_body(9, prompt=SECRETS[0]), headers=key)
        assert refused.status == 429
        wrong = await bench.post(COMPLETIONS, block_body(9, max_tokens=-1, prompt="<img src=x onerror=alert(1)>"))
        assert wrong.status == 400

        await browser.until("return document.querySelectorAll('#refused tbody tr').length === 2", "two refusals")
        newest, oldest = await browser.run(ROWS, "#refused")
        assert newest[1] == "invalid_request"
        assert oldest[1] == "queue_full"
        assert oldest[2] == refused.error["message"], "what the caller was told, numbers and all"
        assert "KV blocks" in oldest[2]
        assert int(oldest[3]) == int(refused.head.number("x-kvgate-blocks"))
        counts = await browser.text("#h-refused .count")
        assert {"queue_full 1", "invalid_request 1"} == set(counts.split(", "))

        assert await column(browser, "#line", 0) == ["1", "2", "3"]
        assert [why.split(" on ")[0] for why in await column(browser, "#line", 2)] == [
            f"needs {4 + number} blocks, 0 free" for number in range(3)
        ]
        assert (await browser.text("#h-line .count")).startswith("3 for 15 blocks")
        await picture(browser, "queue-full")
        gate.set()
        assert [(await waiter.answer()).status for waiter in waiters] == [200, 200, 200]
        for waiter in waiters:
            waiter.hang_up()
    await browser.until("return document.querySelector('#line .empty').checkVisibility()", "nobody waits")
    await check_quiet(browser, bench.gateway.admin_url)


async def test_a_backend_that_is_down_is_said_to_be(browser: Browser, own_bench: Bench) -> None:
    await open_console(browser, own_bench)
    await own_bench.fake.stop()
    await browser.until("return document.querySelector('.card .pill').dataset.state === 'unhealthy'", "it is unhealthy")
    trouble = await browser.text(".card .trouble")
    assert "refused" in trouble.lower(), trouble
    answer = await own_bench.std()
    assert answer.status in (502, 503)
    await browser.until("return document.querySelectorAll('#refused tbody tr').length === 1", "the refusal is shown")
    assert await column(browser, "#refused", 1) == ["no_backend"]
    await picture(browser, "backend-down")
    await check_quiet(browser, own_bench.gateway.admin_url)


async def test_a_backend_that_was_never_there_is_waited_for_in_words(browser: Browser) -> None:
    async with running_gateway([f"later=http://127.0.0.1:{free_port()}"], wait_ready=False, watched=False) as gateway:
        await browser.take_log()
        await browser.look()
        await browser.open(f"{gateway.admin_url}/console")
        await browser.until(LIVE, "the console is live")
        await browser.until("return document.querySelector('.card .pill').dataset.state === 'unhealthy'", "it is unhealthy")
        assert await browser.text(".card b") == "later"
        assert "refused" in (await browser.text(".card .trouble")).lower()
        assert not await browser.run("return document.querySelector('.bar').checkVisibility()"), "of no budget there is no bar"
        assert await browser.take_log() == []


async def test_a_drain_is_announced_and_the_end_of_the_gateway_is_said_plainly(browser: Browser, own_bench: Bench) -> None:
    bench = own_bench
    await open_console(browser, bench)
    gate, tag = asyncio.Event(), bench.tag("last")
    bench.fake.script(tag, held_stream(gate))
    async with await bench.take(8, tag, stream=True) as last:
        bench.gateway.process.send_signal(signal.SIGTERM)
        await browser.until("return document.querySelector('#draining').checkVisibility()", "it says that it drains")
        assert await browser.text("#link") == "draining"
        await browser.until(HELD, "what runs is still shown", 8)
        await picture(browser, "draining")
        gate.set()
        assert (await last.answer()).status == 200
    await browser.until("return document.querySelector('#lost').checkVisibility()", "it says that the gateway is lost")
    assert "The gateway is lost, for" in await browser.text("#lost")
    assert "as it was then" in await browser.text("#lost")
    assert await browser.text("#link") == "lost"
    assert await browser.run("return document.body.classList.contains('is-lost')")
    await picture(browser, "lost")
    # A gateway that is gone is the one thing that may be complained about.
    assert [said for said in await browser.take_log() if "net::ERR" not in said] == []
    assert (await bench.gateway.exited()).code == 0


async def test_it_finds_a_gateway_that_comes_back(browser: Browser, own_bench: Bench) -> None:
    await open_console(browser, own_bench)
    async with own_bench.gateway.frozen():
        await browser.until("return document.querySelector('#lost').checkVisibility()", "silence is a loss, too")
    await browser.until(LIVE, "it is live again")
    assert not await browser.run("return document.querySelector('#lost').checkVisibility()")


CONTRASTS = """
    const luminance = (colour) => {
        const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const ground = (node) => {
        for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if (!/, 0\\)$/.test(colour)) return colour;
        }
    };
    const found = {};
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
        const node = words.currentNode.parentElement;
        if (!words.currentNode.data.trim() || !node.checkVisibility() || node.closest('noscript, .skip')) continue;
        const both = [getComputedStyle(node).color, ground(node)].map(luminance).sort((one, other) => other - one);
        const contrast = (both[0] + 0.05) / (both[1] + 0.05);
        if (contrast < 4.5) found[node.className + ' ' + words.currentNode.data.trim().slice(0, 30)] = contrast.toFixed(2);
    }
    return found;
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_can_be_read_in_light_and_in_dark(browser: Browser, own_bench: Bench, dark: bool) -> None:
    await open_console(browser, own_bench)
    await browser.look(dark=dark)
    async with own_bench.everything_taken(20) as gate:
        await own_bench.post(COMPLETIONS, block_body(4, max_tokens=-1))
        waiter = await own_bench.wait_in_line(60, own_bench.tag("waits"))
        await browser.until("return document.querySelectorAll('tbody tr').length === 3", "each table has a row")
        assert await browser.run(CONTRASTS) == {}
        ground = await browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in ground[4:-1].split(",")) < 128) == dark, ground
        await picture(browser, "dark" if dark else "light")
        gate.set()
        await waiter.answer()
        waiter.hang_up()
    await check_quiet(browser, own_bench.gateway.admin_url)


@pytest.mark.parametrize("width", [360, 768, 1920])
async def test_it_fits_a_screen_of_any_width(browser: Browser, own_bench: Bench, width: int) -> None:
    await open_console(browser, own_bench)
    async with own_bench.everything_taken() as gate:
        waiter = await own_bench.wait_in_line(4, own_bench.tag("waits"))
        await browser.until("return document.querySelectorAll('#line tbody tr').length === 1", "somebody waits")
        await browser.look(width=width, height=800)
        seen = await browser.run("return [document.documentElement.scrollWidth, innerWidth]")
        assert seen[0] <= seen[1] == width, "nothing has to be scrolled sideways but tables"
        small = await browser.run("""
            return [...document.querySelectorAll('td, dd, li, p')].filter((node) =>
                node.checkVisibility() && parseFloat(getComputedStyle(node).fontSize) < 10).length
        """)
        assert small == 0
        await picture(browser, f"width-{width}")
        gate.set()
        await waiter.answer()
        waiter.hang_up()


async def test_it_is_used_by_keyboard(browser: Browser, own_bench: Bench) -> None:
    await open_console(browser, own_bench)
    focus = "const at = document.activeElement; return at.id || at.className || at.getAttribute('href')"
    await browser.press("4")
    assert await browser.run(focus) == "h-refused"
    await browser.press("1")
    assert await browser.run(focus) == "h-backends"
    await browser.press("\ue004")  # tab
    assert await browser.run(focus) != "h-backends"
    await browser.press("p")
    await browser.until("return document.querySelector('#link').textContent === 'paused'", "it is paused")
    async with own_bench.everything_taken(16) as gate:
        await asyncio.sleep(0)
        await own_bench.state_where(lambda state: state.raw["backends"][0]["held_blocks"] == 16, "16 are held")
        assert await browser.run(HELD, 0), "what is read does not move away"
        await browser.press("p")
        await browser.until(HELD, "and moves on afterwards", 16)
        gate.set()
    chart = "document.querySelector('#chart-tokens svg')"
    await browser.run(f"{chart}.focus()")
    await browser.press("\ue012", "\ue012")  # left
    assert "ago" in await browser.run("return document.querySelector('#chart-tokens .axis span').textContent")


async def test_every_assumption_and_warning_in_force_is_on_the_page(browser: Browser) -> None:
    # Its own figures contradict the plain formula, and it is said to have more than it says.
    engine = FakeEngine(kv_cache_size_tokens=700)
    async with running_bench(engine, KVGATE_KV_BLOCKS="1000", KVGATE_BLOCK_TOKENS="16", watched=False) as bench:
        await open_console(browser, bench)
        state = (await bench.gateway.state()).raw
        assert state["warnings"]
        assert state["assumptions"]
        texts = "return [...document.querySelectorAll(arguments[0])].map((item) => item.textContent)"
        assert await browser.run(texts, "#warnings li") == state["warnings"]
        assert await browser.run(texts, "#assumed li") == state["assumptions"]
        assert await browser.run("return document.querySelector('#warnings').checkVisibility()")
        await picture(browser, "warnings")


async def call(url: str, number: int) -> int:
    body: dict[str, Any] = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": SECRETS[0]}]}
    if number % 2:
        body["max_tokens"] = 150
    return (await post(url, "/v1/chat/completions", body, {"authorization": f"Bearer {SECRETS[1]}"})).status


async def test_under_load_every_part_has_something_to_show(browser: Browser) -> None:
    shape = EngineShape(num_blocks=129, block_tokens=16, max_context=512, pace=Pace(speed=1))
    settings = {"KVGATE_QUEUE_REQUESTS": "6"}
    async with (
        Simulator(shape, served=Served(name="tiny", max_context=512, mean_output_tokens=100)) as engine,
        running_gateway([engine.url], settings, watched=False) as gateway,
    ):
        await browser.take_log()
        await browser.take_requested()
        await browser.look()
        await browser.open(f"{gateway.admin_url}/console")
        await browser.until(LIVE, "the console is live")
        calls = [asyncio.create_task(call(gateway.url, number)) for number in range(60)]
        await browser.until(
            "return document.querySelectorAll('#running tbody tr').length > 3"
            " && document.querySelectorAll('#refused tbody tr').length > 3",
            "requests run, and others were refused",
        )
        await browser.until("return document.querySelector('#chart-refusals .bars').getAttribute('d') !== ''", "bars")
        assert {"queue_full"} == set(await column(browser, "#refused", 1))
        await picture(browser, "under-load")
        statuses = await asyncio.gather(*calls)
        assert set(statuses) == {200, 429}
        for chart, kind in (("wait", "p95"), ("ttft", "p95"), ("tokens", "rate")):
            await browser.until(
                "return document.querySelector(`#chart-${arguments[0]} .${arguments[1]}`).getAttribute('d').length > 8",
                f"the chart of {chart} has a line",
                chart,
                kind,
            )
        await browser.until(
            "const totals = Object.fromEntries([...document.querySelectorAll('#totals div')].map((pair) =>"
            " [pair.firstChild.textContent, pair.lastChild.textContent]));"
            "return totals.completed === arguments[0] && totals.refused === arguments[1]",
            "the totals are what the clients counted",
            str(statuses.count(200)),
            str(statuses.count(429)),
        )
        await check_quiet(browser, gateway.admin_url)


async def test_viewers_cost_one_snapshot_a_second_together_and_leave_nothing_behind(own_bench: Bench) -> None:
    admin_url = own_bench.gateway.admin_url
    before = own_bench.gateway.open_files()
    viewers = [await Connection.open(admin_url) for _ in range(17)]
    statuses = []
    for viewer in viewers:
        await viewer.send("GET", "/console/events")
        statuses.append((await viewer.head()).status)
    assert statuses == [200] * 16 + [503]
    first = [json.loads((await viewer.read_until(b"}\n\n")).split(b"data: ", 1)[1]) for viewer in viewers[:16]]
    assert len({frame["state"]["uptime_s"] for frame in first}) <= 2, "the same snapshot, or the one after it"
    assert (await own_bench.gateway.probe("/console", on_data_port=True)).status == 404, "on the admin port only"
    for viewer in viewers:
        viewer.vanish()
    async with asyncio.timeout(5):
        while own_bench.gateway.open_files() > before:
            await asyncio.sleep(0.02)
