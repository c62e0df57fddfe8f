"""Case D-2: a balancer that obeys `/ready` loses no request to a shutdown."""

import asyncio
import time

from support.bench import CHAT, chat_body, running_bench
from support.http_client import Broken, ask

DELAY_S = 2.0
LOOK_S = 0.2


async def test_d2_a_client_that_obeys_ready_sees_no_failure() -> None:
    async with running_bench(KVGATE_DRAIN_DELAY=f"{DELAY_S}s", KVGATE_DRAIN_TIMEOUT="5s", watched=False) as bench:
        tag = bench.tag("d2")
        bench.fake.script(tag, bench.engine.completion(first_gap_s=0.05))
        is_ready, seen, over = asyncio.Event(), [], asyncio.Event()
        is_ready.set()

        async def look() -> None:
            while not over.is_set():
                try:
                    found = await ask(bench.gateway.url, "GET", "/ready")
                except (OSError, Broken):
                    found = None
                seen.append((time.monotonic(), found.status if found else None))
                if found is None or found.status != 200:
                    is_ready.clear()
                await asyncio.sleep(LOOK_S)

        statuses: list[int] = []

        async def request() -> None:
            statuses.append((await bench.post(CHAT, chat_body(16), tag=tag)).status)

        looking = asyncio.create_task(look())
        requests: list[asyncio.Task[None]] = []
        stopped_at: float | None = None
        stopping: asyncio.Task[object] | None = None
        while is_ready.is_set():
            requests.append(asyncio.create_task(request()))
            await asyncio.sleep(0.05)
            if len(requests) == 10:
                stopped_at = time.monotonic()
                stopping = asyncio.create_task(bench.gateway.stop(within_s=20))
        assert stopped_at is not None
        assert stopping is not None
        after_stop = len(requests)
        assert (await bench.gateway.probe("/health")).status == 200
        assert (await bench.gateway.probe("/ready")).status == 503
        late = await bench.post(CHAT, chat_body(16), tag=tag)  # a balancer that has not looked yet
        await asyncio.gather(*requests)
        over.set()
        await looking
        ended = await stopping
        assert getattr(ended, "code", None) == 0
        assert statuses == [200] * after_stop
        assert late.status == 200
        first_503 = next(at for at, status in seen if status == 503)
        assert first_503 - stopped_at < LOOK_S + DELAY_S / 2
        assert not [status for at, status in seen if at > first_503 and status == 200]
