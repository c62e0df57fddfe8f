"""What admission learns of an answer while it runs: in steps and sums, never per chunk."""

import pytest

from gateway.admission.running_answer import STEP_TOKENS, RunningAnswer
from gateway.core.commitment import Ending
from gateway.core.demand import Usage
from gateway.core.pace import Pace
from support.heard import Heard


def look(answer: RunningAnswer, now: float, *, events: int = 0, text_bytes: int = 0, is_blocked: bool = False) -> None:
    answer.look(events=events, text_bytes=text_bytes, last_read_at=now - 0.01, is_blocked=is_blocked, now=now)


def test_progress_is_reported_in_steps() -> None:
    heard = Heard()
    answer = heard.running()
    answer.first_token(100.1)
    for number in range(1, 100):
        look(answer, 100.0 + number / 4, events=number)
    assert heard.progress == [STEP_TOKENS, 2 * STEP_TOKENS, 3 * STEP_TOKENS]
    assert heard.first_tokens == [True]


def test_gaps_are_what_the_engine_took_and_not_what_the_client_did() -> None:
    heard = Heard()
    answer = heard.running()
    answer.first_token(100.0)
    look(answer, 100.25, events=1)
    look(answer, 100.5, events=11)
    look(answer, 100.75, events=11)
    look(answer, 101.0, events=13)
    assert heard.gaps == [(0.25, 10), (0.5, 2)]
    look(answer, 110.0, events=13, is_blocked=True)
    look(answer, 130.0, events=20)
    look(answer, 130.25, events=30)
    assert heard.gaps[2:] == [(0.25, 10)], "nine seconds in which the client read nothing are nobody's gap"


def test_sequences_that_take_turns_tell_no_gap_and_step_together() -> None:
    heard = Heard()
    answer = heard.running(seats=4)
    for number in range(1, 9):
        look(answer, 100.0 + number, events=40 * number)
    assert heard.gaps == []
    assert heard.progress == [160, 320]


def test_a_prompt_counts_as_computed_after_a_while_whatever_was_seen() -> None:
    heard = Heard()
    answer = heard.running(is_stream=False)
    look(answer, 104.9)
    assert heard.first_tokens == []
    look(answer, 105.1)
    look(answer, 106.0)
    assert heard.first_tokens == [False]


def test_a_plain_answer_is_taken_to_progress_at_half_the_pace_of_others() -> None:
    heard, pace = Heard(), Pace()
    pace.saw_gaps(1.0, 50, now=0.0)
    pace.saw_gaps(1.0, 50, now=2.0)
    answer = heard.running(is_stream=False, pace=pace)
    look(answer, 110.0)
    assert heard.progress == [250]


def test_its_end_is_learned_from_its_usage_and_else_from_what_was_seen() -> None:
    heard, pace = Heard(), Pace()
    answer = heard.running(pace=pace)
    answer.ended(Ending.FINISHED, usage=Usage(10, 77), events=70, text_bytes=308, now=101.0)
    assert pace.progress(events=0, text_bytes=400, elapsed_s=0.0) == 100
    heard.running(pace=pace).ended(Ending.LEFT, usage=None, events=7, text_bytes=40, now=101.0)
    heard.running(pace=pace).ended(Ending.LEFT, usage=None, events=0, text_bytes=0, now=101.0)
    assert heard.learned == [(77, Ending.FINISHED), (10, Ending.LEFT)], "of what said nothing nothing is learned"


def test_what_a_prompt_really_was_is_told_to_the_pace() -> None:
    pace = Pace()
    one = Heard().running(is_stream=False, pace=pace, now=0.0)
    one.ended(Ending.FINISHED, usage=Usage(400, 10, cached_tokens=100), events=0, text_bytes=0, now=2.0)
    assert pace.computed_share == pytest.approx(1.0), "a ticket that counted nothing teaches nothing"
    assert pace.progress(events=0, text_bytes=0, elapsed_s=4.0) == 10
