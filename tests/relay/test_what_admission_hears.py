"""While it relays, an answer tells admission its first token at once, and the rest when it is looked at."""

import asyncio

import pytest

from gateway.core.commitment import Ending
from gateway.core.outcomes import Outcome
from support.fake_upstream import eventually
from support.gates import DONE, chat_event, usage_event
from support.relayed import Relayed

FINISH = chat_event("", "stop")


async def test_the_first_token_is_told_at_once_and_progress_when_it_is_looked_at() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relayed.engine_says(b"".join(chat_event("word ") for _ in range(40)))
    relayed.engine_says(FINISH + usage_event(5, 41) + DONE)
    relayed.engine_ends()
    assert await relayed.run() is Outcome.COMPLETED
    assert relayed.heard.first_tokens == [True]
    assert relayed.heard.progress == [], "nobody looked before it ended"
    relayed.answer.ended(Outcome.COMPLETED)
    assert relayed.heard.learned == [(41, Ending.FINISHED)]


@pytest.mark.parametrize(
    ("finish", "outcome", "learned"),
    [
        ("stop", Outcome.COMPLETED, [(2, Ending.FINISHED)]),
        ("length", Outcome.COMPLETED, [(2, Ending.CAPPED)]),
        ("stop", Outcome.UPSTREAM_ERROR_AFTER, [(2, Ending.LEFT)]),
        ("stop", None, [(2, Ending.LEFT)]),
        ("stop", Outcome.ENGINE_REFUSED, []),
    ],
)
async def test_how_it_ended_is_what_is_learned(finish: str, outcome: Outcome | None, learned: list[tuple[int, Ending]]) -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relayed.engine_says(chat_event("a") + chat_event("b") + chat_event("", finish) + DONE)
    relayed.engine_ends()
    await relayed.run()
    relayed.answer.ended(outcome)
    assert relayed.heard.learned == learned


async def test_of_an_answer_that_never_began_nothing_is_learned() -> None:
    relayed = Relayed()
    relayed.answer.check(relayed.clock.now() + 1.0)
    relayed.answer.ended(None)
    assert relayed.heard.learned == []
    assert relayed.heard.first_tokens == []


async def test_gaps_are_told_of_what_was_read_and_not_across_a_time_in_which_the_client_held_it_up() -> None:
    relayed = Relayed()
    relayed.engine_answers()
    relaying = asyncio.create_task(relayed.run())
    said = 0

    async def tokens_come_and_a_look(*, read: bool = True, blocked: bool = False) -> None:
        nonlocal said
        relayed.clock.advance(0.25)
        if read:
            relayed.engine_says(chat_event("a") + chat_event("b"))
            said += 1
            await eventually(lambda: len(relayed.client.parts) == said)
            await asyncio.sleep(0)
        relayed.client.blocked_since = relayed.clock.now() if blocked else None
        relayed.answer.check(relayed.clock.now())

    for _ in range(2):
        await tokens_come_and_a_look()
    assert relayed.heard.gaps == [(0.25, 2)]
    for _ in range(3):
        await tokens_come_and_a_look(read=False)
    assert relayed.heard.gaps == [(0.25, 2)], "there was nothing to look at"
    await tokens_come_and_a_look()
    assert relayed.heard.gaps[1:] == [(1.0, 2)], "a slow engine's gap is as long as it was"
    await tokens_come_and_a_look(read=False, blocked=True)
    await tokens_come_and_a_look(read=False)
    await tokens_come_and_a_look()
    assert len(relayed.heard.gaps) == 2, "that was the client's"
    await tokens_come_and_a_look()
    assert relayed.heard.gaps[2:] == [(0.25, 2)]

    relayed.engine_says(FINISH + DONE)
    relayed.engine_ends()
    assert await relaying is Outcome.COMPLETED
