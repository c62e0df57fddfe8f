"""What headers ask of the gateway is picked out of them once."""

from gateway.web.asked import LANE, PATIENCE, TRACEPARENT, asked_of


def test_only_what_is_for_the_gateway_is_kept_by_its_name_in_lower_case() -> None:
    headers = [(b"host", b"gateway"), (b"X-Kvgate-Lane", b"batch"), (b"authorization", b"Bearer k"), (PATIENCE[0], b"60")]
    assert asked_of(headers) == {LANE: b"batch", PATIENCE[0]: b"60"}


def test_of_a_header_that_comes_twice_the_first_counts_and_of_two_traces_none() -> None:
    asked = asked_of([(LANE, b"a"), (TRACEPARENT, b"one"), (LANE, b"b"), (TRACEPARENT, b"two"), (TRACEPARENT, b"three")])
    assert asked == {LANE: b"a", TRACEPARENT: b""}
