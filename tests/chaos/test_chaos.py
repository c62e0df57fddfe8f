"""A gateway in the storm, with a seed: nothing leaks, nothing lies, nothing is over-admitted, and it always comes to rest.

By itself this takes a few thousand requests. The whole storm, 200,000 requests of which 30 % have a client or an engine
that misbehaves, is

    python -m pytest tests/chaos --chaos-requests 200000 --chaos-seed 1

What is demanded, and by whom:
* the book keeps its invariants after every call (checking_book.py, a second account beside it);
* what an engine has open at any instant is within its budget (judge.py, which knows nothing of the gateway's account);
* what a client saw is either exactly what its engine sent, or an honest failure, and the gateway's own line about that
  request says the same (client.py, storm.py);
* at rest nothing is held, no object of a request is alive, every request has had one outcome; after a drain no task and no
  file is left (gateways.py).
"""

import pytest

from chaos.report import Storm
from chaos.storm import weather
from gateway.core.outcomes import Outcome

# What must have happened at least once in a storm of a few thousand requests; a storm without it tries too little.
HAPPENS = {
    Outcome.COMPLETED,
    Outcome.CAPPED,
    Outcome.ENGINE_REFUSED,
    Outcome.REFUSED_INVALID_REQUEST,
    Outcome.REFUSED_UNKNOWN_MODEL,
    Outcome.REFUSED_BODY_TOO_LARGE,
    Outcome.REFUSED_CONTEXT_LENGTH,
    Outcome.REFUSED_KV_BUDGET,
    Outcome.REFUSED_DRAINING,
    Outcome.CLIENT_GONE_UPLOAD,
    Outcome.CLIENT_GONE_QUEUED,
    Outcome.CLIENT_GONE_WAITING,
    Outcome.CLIENT_GONE_STREAMING,
    Outcome.TIMEOUT_UPLOAD,
    Outcome.TIMEOUT_QUEUE,
    Outcome.UPSTREAM_ERROR_BEFORE,
    Outcome.UPSTREAM_ERROR_AFTER,
}


@pytest.mark.slow
def test_in_a_storm_nothing_leaks_nothing_lies_and_nothing_is_over_admitted(pytestconfig: pytest.Config) -> None:
    storm = Storm(pytestconfig.getoption("--chaos-requests"), pytestconfig.getoption("--chaos-seed"))
    report = weather(storm)
    assert report.findings == []
    assert report.begun == storm.requests
    assert report.received == report.outcomes.total()
    assert report.received >= report.compared > storm.requests / 2
    assert report.outcomes["completed"] > storm.requests / 10
    assert 0.25 < report.faulty / report.begun < 0.35
    assert report.waited > storm.requests / 50
    missing = {outcome for outcome in HAPPENS if not report.outcomes[outcome]}
    assert storm.requests < 3_000 or not missing


@pytest.mark.slow
def test_a_gateway_in_a_process_of_its_own_stands_the_same_storm(pytestconfig: pytest.Config) -> None:
    requests = max(600, min(5_000, pytestconfig.getoption("--chaos-requests") // 5))
    storm = Storm(requests, pytestconfig.getoption("--chaos-seed") + 1_000_000, life_requests=2_000)
    report = weather(storm, black_box=True)
    assert report.findings == []
    assert report.received == report.outcomes.total()
    assert report.outcomes["completed"] > requests / 10  # it did serve; how much depends on the machine
