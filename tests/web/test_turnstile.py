"""The turnstile: few starts in a turn, in order, and nothing to wait for while few come."""

import asyncio

from gateway.web.turnstile import Turnstile


async def test_while_few_come_nobody_waits() -> None:
    turnstile = Turnstile(per_turn=3)
    for _ in range(3):
        entering = turnstile.enter()
        try:
            entering.send(None)
        except StopIteration:
            continue
        raise AssertionError("it waited")


async def test_a_crowd_starts_a_few_a_turn_in_its_order_and_others_go_between() -> None:
    turnstile = Turnstile(per_turn=4)
    happened: list[int | str] = []

    async def start(number: int) -> None:
        await turnstile.enter()
        happened.append(number)

    crowd = [asyncio.create_task(start(number)) for number in range(40)]
    asked = asyncio.create_task(asyncio.sleep(0))
    asked.add_done_callback(lambda _: happened.append("health"))
    await asyncio.gather(*crowd, asked)
    assert [each for each in happened if each != "health"] == list(range(40))
    assert happened.index("health") <= 12


async def test_one_who_gives_up_in_the_line_uses_nobodys_turn() -> None:
    turnstile = Turnstile(per_turn=1)
    happened: list[int] = []

    async def start(number: int) -> None:
        await turnstile.enter()
        happened.append(number)

    crowd = [asyncio.create_task(start(number)) for number in range(5)]
    await asyncio.sleep(0)
    crowd[2].cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert happened == [0, 1, 3, 4]


async def test_after_a_crowd_it_is_open_again() -> None:
    turnstile = Turnstile(per_turn=2)
    await asyncio.gather(*(turnstile.enter() for _ in range(7)))
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        turnstile.enter().send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")
