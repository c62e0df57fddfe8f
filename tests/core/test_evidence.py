"""Classes of answers: the narrow one speaks once it has seen enough, a wider one until then; and what is kept of it all."""

import json
from typing import Any

import pytest

from gateway.core.commitment.evidence import ENOUGH, Evidence, cap_bucket
from gateway.core.commitment.lengths import Ending
from gateway.core.names import LaneName, PoolName, TicketId
from gateway.core.ticket import Need, Ticket
from support.tickets import A

FAMILY = "llama on vllm 0.32"


def ask(*, cap: int | None = None, lane: str = "standard", family: str = FAMILY) -> Ticket:
    return Ticket(TicketId(1), PoolName("p"), {A: Need(9)}, 0.0, 60.0, lane=LaneName(lane), cap_tokens=cap, family=family)


def learn(evidence: Evidence, ticket: Ticket, tokens: int, times: int = ENOUGH) -> None:
    for _ in range(times):
        evidence.learn(ticket, tokens, Ending.FINISHED)


def expected(evidence: Evidence, ticket: Ticket) -> int | None:
    lengths = evidence.lengths_for(ticket)
    return None if lengths is None else lengths.expected(0)


def test_a_hundred_answers_are_enough_and_ninety_nine_are_not() -> None:
    evidence = Evidence()
    learn(evidence, ask(), 50, ENOUGH - 1)
    assert evidence.lengths_for(ask()) is None
    assert evidence.learn(ask(), 50, Ending.FINISHED), "whoever waits can be charged by it from now on"
    assert expected(evidence, ask()) == 50


def test_a_client_that_left_is_no_answer_and_one_at_its_cap_is() -> None:
    evidence = Evidence()
    for _ in range(3 * ENOUGH):
        evidence.learn(ask(), 50, Ending.LEFT)
    assert evidence.lengths_for(ask()) is None
    for _ in range(ENOUGH):
        evidence.learn(ask(), 50, Ending.CAPPED)
    assert evidence.lengths_for(ask()) is not None


def test_the_narrowest_class_with_enough_speaks() -> None:
    evidence = Evidence()
    learn(evidence, ask(cap=4096), 700)
    assert expected(evidence, ask(cap=5000)) == 700, "caps within a factor of two are one bucket"
    assert expected(evidence, ask(cap=100)) == 700, "the lane speaks for a bucket that nobody saw"
    assert expected(evidence, ask(cap=100, lane="long")) == 700, "the family for a lane that nobody saw"
    assert evidence.lengths_for(ask(family="llama on vllm 0.33")) is None
    learn(evidence, ask(cap=100), 20)
    assert (expected(evidence, ask(cap=100)), expected(evidence, ask(cap=4096))) == (20, 700)


def test_caps_fall_into_buckets_by_powers_of_two() -> None:
    assert [cap_bucket(cap) for cap in (None, 1, 255, 256, 511)] == ["none", "<2", "<256", "<512", "<512"]


def test_an_engines_own_histogram_seeds_a_family_once_and_only_where_nothing_is_known() -> None:
    evidence = Evidence()
    assert not evidence.seed(FAMILY, [(100, 20), (200, 30)]), "fifty answers are too few"
    assert evidence.seed(FAMILY, [(100, 2_000), (200, 7_000), (500, 500)])
    assert expected(evidence, ask()) == 200
    assert not evidence.seed(FAMILY, [(100, 20_000)])
    learn(evidence, ask(), 900, 300)
    assert expected(evidence, ask()) == 900, "what is seen here soon counts for more"
    known = Evidence()
    learn(known, ask(), 30)
    assert not known.seed(FAMILY, [(200, 7_000)])


def test_a_record_survives_json_and_begins_where_it_was() -> None:
    evidence = Evidence()
    learn(evidence, ask(), 120)
    learn(evidence, ask(cap=64), 33)
    again = Evidence()
    assert again.take(json.loads(json.dumps(evidence.record()))) == {FAMILY}
    assert (expected(again, ask()), expected(again, ask(cap=64))) == (120, 33)
    assert again.lengths_for(ask(family="llama on vllm 0.33")) is None, "another version's record is without effect"
    assert [each.completions for each in again.seen()] == [each.completions for each in evidence.seen()]


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        "evidence",
        {},
        {"kvgate_evidence": 2, "classes": []},
        {"kvgate_evidence": 1},
        {"kvgate_evidence": 1, "classes": [{}]},
        {"kvgate_evidence": 1, "classes": [{"class": ["f"], "completions": -1, "bins": []}]},
        {"kvgate_evidence": 1, "classes": [{"class": [1], "completions": 1, "bins": []}]},
        {"kvgate_evidence": 1, "classes": [{"class": ["f"], "completions": 1, "bins": [[1, 2, 3]]}]},
        {"kvgate_evidence": 1, "classes": [{"class": ["f"], "completions": 1, "bins": [[1e999, 2, 3, 4]]}]},
        {"kvgate_evidence": 1, "classes": [{"class": ["f"], "completions": 1, "bins": [["x", 2, 3, 4]]}]},
        {"kvgate_evidence": 1, "classes": [{"class": [f"f{n}"], "completions": 1, "bins": []} for n in range(600)]},
    ],
)
def test_what_is_no_record_is_refused_whole(record: Any) -> None:
    evidence = Evidence()
    learn(evidence, ask(), 50)
    with pytest.raises(ValueError):
        evidence.take(record)
    assert expected(evidence, ask()) == 50
    assert evidence.families() == {FAMILY}


def test_many_families_do_not_fill_the_memory() -> None:
    evidence = Evidence()
    for number in range(2_000):
        evidence.learn(ask(family=f"model {number}"), 5, Ending.FINISHED)
    assert len(list(evidence.seen())) <= 512
