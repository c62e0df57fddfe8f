"""When a backend counts as gone, and when it is back."""

from gateway.backends.health import Health


def alive() -> Health:
    health = Health(now=0.0)
    health.answered(now=1.0)
    return health


def test_a_backend_that_never_answered_is_not_healthy() -> None:
    assert not Health(now=0.0).healthy


def test_three_failed_probes_in_a_row_and_no_fewer_make_it_unhealthy() -> None:
    health = alive()
    for second in (2.0, 4.0):
        health.probe_failed(started=second, now=second + 1)
        assert health.healthy
    health.probe_failed(started=6.0, now=7.0)
    assert not health.healthy
    assert health.since == 7.0


def test_an_answer_between_them_begins_the_count_anew() -> None:
    health = alive()
    for second in (2.0, 4.0):
        health.probe_failed(started=second, now=second + 1)
    health.answered(now=6.0)
    for second in (8.0, 10.0):
        health.probe_failed(started=second, now=second + 1)
    assert health.healthy


def test_two_refused_connects_in_a_row_make_it_unhealthy() -> None:
    health = alive()
    health.connect_refused(now=2.0)
    assert health.healthy
    health.connect_refused(now=2.1)
    assert not health.healthy


def test_a_refused_connect_then_bytes_then_another_refused_one_is_not_two_in_a_row() -> None:
    health = alive()
    health.connect_refused(now=2.0)
    health.alive(now=2.5)
    health.connect_refused(now=3.0)
    assert health.healthy


def test_a_probe_that_failed_while_bytes_flowed_is_no_failure() -> None:
    health = alive()
    for second in range(2, 40, 2):
        health.alive(now=second + 0.5)
        health.probe_failed(started=float(second), now=second + 5.0)
    assert health.healthy


def test_one_byte_brings_it_back() -> None:
    health = alive()
    for second in (2.0, 4.0, 6.0):
        health.probe_failed(started=second, now=second + 1)
    health.alive(now=8.0)
    assert health.healthy
    assert health.since == 8.0
