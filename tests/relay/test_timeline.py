"""Instants of one request, and the gaps between its tokens."""

from gateway.relay.timeline import Timeline


def test_only_the_first_token_is_the_first_and_gaps_lie_between_two() -> None:
    timeline = Timeline(arrived=0.0, sent=0.0)
    for now in (1.0, 1.5, 3.5):
        timeline.token_event(now)
    assert (timeline.first_token, timeline.last_token) == (1.0, 3.5)
    assert timeline.take_gaps() == [0.5, 2.0]


def test_gaps_are_taken_once_and_go_on_from_the_last_token() -> None:
    timeline = Timeline(arrived=0.0)
    timeline.token_event(1.0)
    timeline.token_event(2.0)
    assert timeline.take_gaps() == [1.0]
    timeline.token_event(5.0)
    assert timeline.take_gaps() == [3.0]
    assert timeline.take_gaps() == []


def test_many_token_events_at_once_leave_what_they_leave_one_by_one() -> None:
    at_once, one_by_one = Timeline(arrived=0.0), Timeline(arrived=0.0)
    for timeline in (at_once, one_by_one):
        timeline.token_event(1.0)
    at_once.more_token_events([1.1, 1.7, 4.3])
    for now in (1.1, 1.7, 4.3):
        one_by_one.token_event(now)
    assert at_once == one_by_one
    at_once.more_token_events([5.0])
    assert at_once.last_token == 5.0
