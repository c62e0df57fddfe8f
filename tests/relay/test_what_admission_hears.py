"""While it relays, an answer tells admission its first token at once, and the rest when it is looked at."""

import pytest

from gateway.core.commitment import Ending
from gateway.core.outcomes import Outcome
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
