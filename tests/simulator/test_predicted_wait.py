"""The predicted wait against the truth, on the simulator's scheduler with recorded requests: production chat and agents.

Clients have patience of a few seconds to a minute. Who is refused early is refused because its wait is predicted to outlast
its patience; in a shadow of the run in which that refusal is noted and not made, it is seen whether it would have. With `-s`
the figures are printed.
"""

import random
from collections.abc import Callable

import pytest

from benchmarks.policies.traces import sessions, window
from gateway.simulator.engine import EngineShape
from gateway.simulator.pace import Pace
from support.shadow_run import Seen, ShadowedRun, Turn
from support.simulated_run import Ask

PATIENCE_S = (5.0, 15.0, 30.0, 60.0)
# Until the first hundred answers were seen, what sends no cap is charged a whole context, and so are its waits: from then on
# the same room lets many times as many in, which no prediction of before can know.
WARM_S = 30.0
# What clients send as their cap, or nothing, which is how most begin.
CAPS = {"strict": 1024, "auto": None}


def cap(commitment: str, output_tokens: int) -> int | None:
    sent = CAPS[commitment]
    return None if sent is None else max(sent, output_tokens)


def chat(commitment: str) -> Seen:
    """Production chat at about one and a half times what the engine can do, in the bursts in which it came."""
    shape = EngineShape(num_blocks=4_097, max_context=8_192, max_running=256, pace=Pace(speed=4))
    run = ShadowedRun(shape, commitment=commitment, patience_s=PATIENCE_S, judged=4, judged_from_s=WARM_S)
    arrivals = window("azure_conv", first=0, requests=1_500, rate=14.0, context=8_000)
    for arrival in arrivals:
        output = arrival.output_tokens
        run.begin([Turn(0.0, Ask(arrival.prompt_tokens, output, cap(commitment, output)))], at=arrival.at)
    run.until(arrivals[-1].at + 60.0)
    return run.saw


def agents(commitment: str) -> Seen:
    """Sixty coding agents on an engine that holds some six of their contexts; no prefix is kept."""
    shape = EngineShape(num_blocks=25_001, max_context=131_072, max_running=256, step_tokens=8_192, pace=Pace(speed=10))
    run = ShadowedRun(shape, commitment=commitment, patience_s=PATIENCE_S, judged=4, judged_from_s=WARM_S)
    draw = random.Random(3)
    for turns in sessions("claude_code_sessions"):
        # A user who goes to lunch would only make the run longer.
        asks = [
            Turn(min(turn.think_s, 60.0), Ask(turn.prompt_tokens, turn.output_tokens, cap(commitment, turn.output_tokens)))
            for turn in turns
        ]
        run.begin(asks, at=draw.uniform(0.0, 30.0))
    run.until(1_200.0)
    return run.saw


@pytest.mark.slow
@pytest.mark.parametrize("commitment", CAPS)
@pytest.mark.parametrize("trace", [chat, agents])
def test_of_those_refused_early_less_than_one_in_twenty_would_have_been_in_time(
    trace: Callable[[str], Seen], commitment: str
) -> None:
    saw = trace(commitment)
    print(f"\n{commitment}: {saw}")
    assert len(saw.refusals) >= 20
    assert saw.refused_in_vain < 0.05
    assert 0.7 < saw.error(0.5) < 1.1
    assert saw.timed_out < len(saw.waits) / 5
