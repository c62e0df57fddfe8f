"""The bound and the learned ratio on real tokenizers, which packages ship.

`pytest tests/tokens/test_real_tokenizers.py -s` prints how far the bound lies above the truth.
"""

import json
import random
from collections.abc import Sequence

import pytest

from gateway.core.request import InferenceRequest
from gateway.dialects import DIALECTS
from gateway.tokens.bound import prompt_bound
from gateway.tokens.least import least_tokens
from gateway.tokens.ratio import SHARE, Ratios
from support.real_tokenizers import NAMES, count_with
from support.texts import KINDS, ORDINARY, Kind, texts

COMPLETIONS = DIALECTS["/v1/completions"]
CHAT = DIALECTS["/v1/chat/completions"]
TEXTS = 10_000


def completion(text: str) -> InferenceRequest:
    return COMPLETIONS.read_request(json.dumps({"prompt": text}, ensure_ascii=False).encode())


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_never_below_the_truth_on_ten_thousand_texts(name: str) -> None:
    count = count_with(name)
    below: list[str] = []
    bounds = truths = 0
    overshoots = 0.0
    for text in texts(TEXTS):
        truth, bound = count(text), prompt_bound(completion(text).prompts[0])
        assert bound is not None
        if bound < truth:
            below.append(text)
        bounds += bound
        truths += truth
        overshoots += bound / truth
    print(f"\n{name}: bound / truth {bounds / truths:.2f} over all tokens, {overshoots / TEXTS:.2f} in the mean over texts")
    assert below == []


@pytest.mark.parametrize("name", NAMES)
def test_a_chat_is_bounded_with_the_marks_of_its_template_spelled_out(name: str) -> None:
    """The template that makes most of the least: ChatML, whose marks no model here knows as tokens of their own."""
    count = count_with(name)
    chance = random.Random(2)
    pool = texts(500, seed=9)
    for _ in range(300):
        messages = [
            {"role": chance.choice(("user", "assistant", "system")), "content": chance.choice(pool)}
            for _ in range(chance.choice((1, 2, 5, 40)))
        ]
        body = json.dumps({"messages": messages}, ensure_ascii=chance.random() < 0.5).encode()
        bound = prompt_bound(CHAT.read_request(body).prompts[0])
        rendered = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
        assert bound is not None
        assert bound >= count(rendered + "<|im_start|>assistant\n")


@pytest.mark.parametrize("kinds", [KINDS, ORDINARY], ids=["every kind at once", "prose and code"])
@pytest.mark.parametrize("name", NAMES)
def test_the_learned_ratio_counts_too_low_in_at_most_the_stated_share(name: str, kinds: Sequence[Kind]) -> None:
    """Texts of every kind in one sample are harder than any real traffic: some are twenty times dearer than others."""
    count = count_with(name)
    ratios = Ratios()
    estimated = too_low = estimates = bounds = truths = 0
    for text in texts(TEXTS, seed=3, kinds_of=kinds):
        request = completion(text)
        truth = count(text)
        found = ratios.estimate("family", request)
        if found is not None:
            estimated += 1
            too_low += found[0] < truth
            truths, estimates = truths + truth, estimates + found[0]
            bounds += prompt_bound(request.prompts[0]) or 0
        ratios.learn("family", request, truth)
    print(
        f"\n{name}: {too_low} of {estimated} too low, estimate / truth {estimates / truths:.2f} (bound {bounds / truths:.2f})"
    )
    assert estimated > TEXTS / 10
    assert too_low <= SHARE * estimated


@pytest.mark.parametrize("name", NAMES)
def test_no_text_has_fewer_tokens_than_half_its_words(name: str) -> None:
    count = count_with(name)
    for text in texts(3000, seed=4):
        assert count(text) >= least_tokens(completion(text)) / 2
