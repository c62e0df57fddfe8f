"""Fairness on simulated time, judged by an oracle that knows nothing of turns: what a fluid max-min division of the same amount
would have given each. The twin is the same book told that all are one tenant, and must fail the same judgement."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from gateway.core.lane_table import STANDARD_ONLY, LaneTable, LaneTerms
from gateway.core.names import STANDARD_LANE, LaneName
from support.fair_run import Call, FairRun
from support.max_min import fair_service

BLOCKS = 64
UNTIL_S = 1000.0
LONGEST_S = 8.0
# As core/shares.py states it: one poolful, held at once for as long as one hold lasts.
BOUND = BLOCKS * LONGEST_S

BATCH = LaneName("batch")


def stream(rng: random.Random, tenant: str, load: float, is_on: Callable[[float], bool] = lambda now: True) -> list[Call]:
    """Requests of 2 to 8 blocks for 1 to 8 s, at random times; load: of the pool, while it is on."""
    calls = []
    now = 0.0
    while now < UNTIL_S:
        now += rng.expovariate(load * BLOCKS / (5 * 4.5))
        if is_on(now):
            calls.append(Call(now, tenant, rng.randint(2, 8), rng.uniform(1.0, LONGEST_S)))
    return calls


@dataclass(frozen=True, slots=True)
class Scene:
    calls: list[Call]
    weights: dict[str, float]
    lanes: LaneTable = STANDARD_ONLY


def one_at_three_times_its_share_beside_eight_light_ones(rng: random.Random) -> Scene:
    light = [f"light-{number}" for number in range(8)]
    calls = stream(rng, "heavy", 3 / 9)
    for name in light:
        calls += stream(rng, name, 0.9 / 9)
    return Scene(calls, dict.fromkeys(["heavy", *light], 1.0))


def weights_of_one_two_and_four(rng: random.Random) -> Scene:
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    return Scene([call for name in weights for call in stream(rng, name, 0.9)], weights)


def bursts_beside_two_steady_ones(rng: random.Random) -> Scene:
    calls = stream(rng, "bursts", 3.0, lambda now: now % 40 < 10)
    calls += stream(rng, "steady", 0.3) + stream(rng, "other", 0.3)
    return Scene(calls, dict.fromkeys(["bursts", "steady", "other"], 1.0))


def two_lanes_of_three_and_one(rng: random.Random) -> Scene:
    calls = stream(rng, "talk", 0.9) + [replace(call, lane=BATCH) for call in stream(rng, "batch", 1.2)]
    lanes = LaneTable((LaneTerms(STANDARD_LANE, weight=3.0), LaneTerms(BATCH, weight=1.0)))
    return Scene(calls, {"talk": 3.0, "batch": 1.0}, lanes)


SCENES = [
    one_at_three_times_its_share_beside_eight_light_ones,
    weights_of_one_two_and_four,
    bursts_beside_two_steady_ones,
    two_lanes_of_three_and_one,
]


def shortfalls(scene: Scene, *, is_fair: bool) -> dict[str, float]:
    """Block-seconds that each had less than its fair part of what was given in all."""
    calls: Sequence[Call] = sorted(scene.calls, key=lambda call: call.at)
    weights = scene.weights if scene.lanes is STANDARD_ONLY else dict.fromkeys(scene.weights, 1.0)
    served = FairRun(BLOCKS, weights, is_fair=is_fair, lanes=scene.lanes).run(calls, until=UNTIL_S)
    arrivals = [(call.at, call.tenant, call.blocks * call.seconds) for call in calls]
    fair = fair_service(arrivals, rate=sum(served.values()) / UNTIL_S, weights=scene.weights, until=UNTIL_S)
    return {name: fair[name] - served[name] for name in fair}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_has_less_than_its_share_by_more_than_the_bound(scene: Callable[[random.Random], Scene], seed: int) -> None:
    short = shortfalls(scene(random.Random(seed)), is_fair=True)
    assert max(short.values()) <= BOUND, short


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
@pytest.mark.parametrize("seed", [1, 2])
def test_without_turns_somebody_has(scene: Callable[[random.Random], Scene], seed: int) -> None:
    short = shortfalls(scene(random.Random(seed)), is_fair=False)
    assert max(short.values()) > BOUND, short


def test_the_oracle_gives_to_others_what_one_cannot_use() -> None:
    arrivals = [(0.0, "small", 10.0), (0.0, "large", 1000.0), (5.0, "late", 1000.0)]
    served = fair_service(arrivals, rate=10.0, weights={"small": 1.0, "large": 1.0, "late": 3.0}, until=9.0)
    assert served == pytest.approx({"small": 10.0, "large": 50.0, "late": 30.0})


def test_the_oracle_divides_by_weight_among_those_who_have_work() -> None:
    arrivals = [(0.0, "one", 1000.0), (0.0, "three", 1000.0)]
    served = fair_service(arrivals, rate=8.0, weights={"one": 1.0, "three": 3.0}, until=10.0)
    assert served == pytest.approx({"one": 20.0, "three": 60.0})


def test_victims_of_an_aggressor_wait_much_less_than_they_would_in_one_line() -> None:
    """Eight that ask for 0.6 of the pool together, one that asks for 0.9 of it."""
    rng = random.Random(3)
    victims = [f"victim-{number}" for number in range(8)]
    calls = stream(rng, "aggressor", 0.9)
    for name in victims:
        calls += stream(rng, name, 0.6 / 8)
    calls.sort(key=lambda call: call.at)
    p99_s = {}
    for is_fair in (True, False):
        run = FairRun(BLOCKS, dict.fromkeys(["aggressor", *victims], 1.0), is_fair=is_fair)
        run.run(calls, until=UNTIL_S)
        waits = sorted(wait for name in victims for wait in run.waits[name])
        p99_s[is_fair] = waits[int(0.99 * len(waits))]
    assert p99_s[True] <= p99_s[False] / 3, p99_s
