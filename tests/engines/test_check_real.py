"""`check --probe` against a real server that runs beside the test: KVGATE_TEST_VLLM=http://127.0.0.1:8000, and so on."""

import os

import pytest

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.probe import Prober
from gateway.backends.roster import Roster
from gateway.backends.trial import LENGTHS, run_trial
from gateway.clock import MonotonicClock
from gateway.core.names import BackendName
from support.scripted_engine import NO_TLS

A = BackendName("a")


@pytest.mark.engines
@pytest.mark.parametrize(("variable", "comparisons"), [("KVGATE_TEST_VLLM", LENGTHS + 1), ("KVGATE_TEST_LLAMA_CPP", 1)])
async def test_a_real_engine_counts_and_holds_what_we_predict(variable: str, comparisons: int) -> None:
    url = os.environ.get(variable)
    if url is None:
        pytest.skip(f"{variable} names no server")
    prober = Prober(tls=NO_TLS, limit_s=60.0)
    roster = Roster([BackendSpec(A, url)], prober=prober, clock=MonotonicClock(), queue_timeout_s=60.0)
    try:
        await roster.look()
        results = await run_trial(roster.watch(A))
    finally:
        await roster.stop()
    assert len(results) == comparisons
    assert all(result.agrees and result.seen is not None for result in results), [str(result) for result in results]
