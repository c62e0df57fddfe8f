"""The learned ratio counts too low in at most the share that it states, and says nothing before it knows enough."""

import json
import random
from collections.abc import Callable

import pytest

from gateway.core.request import CapState, InferenceRequest, MediaKind, MediaPart, Prompt
from gateway.tokens.bound import prompt_bound
from gateway.tokens.ratio import CONFIDENCE, SAMPLES, SHARE, Ratios

FAMILY = "model on vllm 1"


def chat(text_bytes: int, **differs: object) -> InferenceRequest:
    prompt = Prompt(text_bytes, messages=1, **differs)  # type: ignore[arg-type]
    return InferenceRequest("model", (prompt,), CapState.ABSENT, None, is_chat=True)


def bound_of(request: InferenceRequest) -> int:
    bound = prompt_bound(request.prompts[0])
    assert bound is not None
    return bound


def test_so_many_samples_have_one_below_the_quantile_with_the_stated_confidence() -> None:
    assert 1 - (1 - SHARE) ** SAMPLES >= CONFIDENCE > 1 - (1 - SHARE) ** (SAMPLES - 1)


def test_nothing_is_said_before_there_are_enough_samples() -> None:
    ratios = Ratios()
    for number in range(SAMPLES - 1):
        assert ratios.learn(FAMILY, chat(4000 + number), 1000)
    assert ratios.estimate(FAMILY, chat(4100)) is None
    ratios.learn(FAMILY, chat(4999), 1000)
    (tokens,) = ratios.estimate(FAMILY, chat(4100)) or (0,)
    assert 1000 < tokens < bound_of(chat(4100)) / 4 + 1


def test_the_smallest_ratio_counts_and_never_the_average() -> None:
    ratios = Ratios()
    for number in range(SAMPLES):
        ratios.learn(FAMILY, chat(4000 + number), 2500 if number == 7 else 800)
    (tokens,) = ratios.estimate(FAMILY, chat(4007)) or (0,)
    assert 2500 <= tokens <= 2501


def test_what_was_seen_long_ago_is_forgotten() -> None:
    ratios = Ratios()
    for number in range(2 * SAMPLES):
        ratios.learn(FAMILY, chat(4000 + number), 2500 if number < SAMPLES else 800)
    (tokens,) = ratios.estimate(FAMILY, chat(4300)) or (0,)
    assert tokens < 1000


def test_one_who_repeats_himself_is_one_witness() -> None:
    ratios = Ratios()
    for _ in range(10 * SAMPLES):
        ratios.learn(FAMILY, chat(4000), 100)
    assert ratios.estimate(FAMILY, chat(4000)) is None


def test_an_estimate_never_passes_the_bound() -> None:
    ratios = Ratios()
    for number in range(SAMPLES):
        ratios.learn(FAMILY, chat(4000 + number), 9000)
    assert ratios.estimate(FAMILY, chat(4000)) == (bound_of(chat(4000)),)


@pytest.mark.parametrize("other", [chat(400), chat(40_000), chat(4000, tools=1)])
def test_other_sizes_and_other_kinds_of_prompts_are_other_classes(other: InferenceRequest) -> None:
    ratios = Ratios()
    for number in range(SAMPLES):
        ratios.learn(FAMILY, chat(4000 + number), 1000)
    assert ratios.estimate(FAMILY, chat(4000)) is not None
    assert ratios.estimate(FAMILY, other) is None
    assert ratios.estimate("another model", chat(4000)) is None


@pytest.mark.parametrize(
    "request_",
    [
        chat(4000, may_be_cut=True),
        chat(4000, has_own_template=True),
        chat(4000, media_parts=1, media=(MediaPart(MediaKind.IMAGE),)),
        InferenceRequest("model", (Prompt(0, token_ids=7),), CapState.ABSENT, None, is_chat=False),
        InferenceRequest("model", (Prompt(100), Prompt(100)), CapState.ABSENT, None, is_chat=False),
    ],
)
def test_what_the_bytes_do_not_explain_teaches_nothing(request_: InferenceRequest) -> None:
    assert not Ratios().learn(FAMILY, request_, 100)
    assert Ratios().estimate(FAMILY, request_) is None


@pytest.mark.parametrize("reported", [0, -1, 2**40])
def test_a_count_that_cannot_be_teaches_nothing(reported: int) -> None:
    assert not Ratios().learn(FAMILY, chat(4000), reported)


Draw = Callable[[random.Random], float]


@pytest.mark.parametrize(
    "draw",
    [
        lambda chance: chance.gauss(4.2, 0.4),
        lambda chance: chance.uniform(1.1, 6.0),
        lambda chance: chance.choice([1.2, 1.5]) if chance.random() < 0.005 else chance.gauss(4.5, 0.2),
        lambda chance: 1.0 + chance.paretovariate(1.5),
        lambda chance: 4.0 - min(chance.expovariate(2.0), 3.0),
    ],
    ids=["narrow", "wide", "rare and dear", "heavy above", "heavy below"],
)
def test_at_most_the_stated_share_is_counted_too_low(draw: Draw) -> None:
    """Learned as it goes, over 20,000 prompts of each distribution, the share stays below what is stated for one sample."""
    chance = random.Random(5)
    ratios = Ratios()
    too_low = estimated = 0
    for _ in range(20_000):
        request = chat(chance.randrange(4000, 15_000))
        tokens = max(1, round(bound_of(request) / max(draw(chance), 1.0)))
        estimate = ratios.estimate(FAMILY, request)
        if estimate is not None:
            estimated += 1
            too_low += estimate[0] < tokens
        ratios.learn(FAMILY, request, tokens)
    assert estimated > 15_000
    assert too_low / estimated <= SHARE


def test_what_was_learned_outlives_the_process() -> None:
    ratios, again = Ratios(), Ratios()
    for number in range(SAMPLES):
        ratios.learn(FAMILY, chat(4000 + number), 1000)
    again.take(json.loads(json.dumps(ratios.record())))
    assert again.estimate(FAMILY, chat(4100)) == ratios.estimate(FAMILY, chat(4100)) is not None


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"kvgate_ratios": 2, "classes": []},
        {"kvgate_ratios": 1},
        {"kvgate_ratios": 1, "classes": [{}]},
        {"kvgate_ratios": 1, "classes": [{"class": ["a", "chat"], "pairs": []}]},
        {"kvgate_ratios": 1, "classes": [{"class": ["a", "chat", 5], "pairs": [[1, 0]]}]},
        {"kvgate_ratios": 1, "classes": [{"class": ["a", "chat", 5], "pairs": [[1, None]]}]},
        {"kvgate_ratios": 1, "classes": [{"class": ["a", "chat", size], "pairs": []} for size in range(300)]},
    ],
)
def test_a_foreign_record_is_refused_whole(record: object) -> None:
    with pytest.raises(ValueError):
        Ratios().take(record)


def test_memory_is_bounded_by_classes_and_the_least_used_gives_way() -> None:
    ratios = Ratios()
    for number in range(SAMPLES):
        ratios.learn(FAMILY, chat(4000 + number), 1000)
    for number in range(255):
        ratios.learn(f"family {number}", chat(4000), 1000)
    assert ratios.estimate(FAMILY, chat(4000)) is not None
    for number in range(255):
        ratios.learn(f"another {number}", chat(4000), 1000)
    assert ratios.estimate(FAMILY, chat(4000)) is not None
    assert len(ratios.record()["classes"]) == 256
