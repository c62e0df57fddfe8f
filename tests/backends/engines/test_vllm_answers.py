"""vLLM's own histogram of answers: what a gateway that has just started may begin with."""

import pytest

from gateway.backends.engines.vllm import _answer_lengths
from gateway.backends.exposition import read_exposition

_NAMES = ("vllm:request_generation_tokens_bucket", "vllm:request_success_total")


def page(*buckets: tuple[str, float], stop: int, length: int = 0, model: str = "tiny") -> str:
    lines = [f'{_NAMES[0]}{{engine="0",le="{edge}",model_name="{model}"}} {count}' for edge, count in buckets]
    lines += [
        f'{_NAMES[1]}{{engine="0",finished_reason="{reason}",model_name="{model}"}} {count}'
        for reason, count in (("stop", stop), ("length", length), ("abort", 7))
    ]
    return "\n".join(lines)


def read(text: str) -> dict[str, tuple[tuple[int, int], ...]]:
    return _answer_lengths(read_exposition(text, _NAMES))


def test_the_cumulative_buckets_become_answers_of_at_most_so_many_tokens() -> None:
    text = page(("10.0", 3.0), ("20.0", 13.0), ("50.0", 13.0), ("+Inf", 14.0), stop=14)
    assert read(text) == {"tiny": ((10, 3), (20, 10), (50, 0))}


def test_engines_behind_one_address_are_added_and_models_kept_apart() -> None:
    two = page(("10.0", 3.0), ("20.0", 13.0), stop=13) + "\n" + page(("10.0", 5.0), ("20.0", 6.0), stop=6, model="other")
    more = page(("10.0", 1.0), ("20.0", 2.0), stop=2).replace('engine="0"', 'engine="1"')
    assert read(f"{two}\n{more}") == {"tiny": ((10, 4), (20, 11)), "other": ((10, 5), (20, 1))}


@pytest.mark.parametrize("capped", [4, 1_000])
def test_where_caps_end_the_answers_it_says_nothing_about_them(capped: int) -> None:
    assert read(page(("10.0", 3.0), ("20.0", 13.0), stop=13, length=capped)) == {}
    assert read(page(("10.0", 3.0), ("20.0", 13.0), stop=13, length=2)) != {}


def test_nonsense_is_no_histogram() -> None:
    assert read("") == {}
    assert read(page(("x", 3.0), ("-1", 13.0), ("NaN", 2.0), stop=13)) == {}
