"""No bytes that a caller sends make a dialect do anything but read them or refuse them.

The whole run is `python -m pytest tests/fuzz --fuzz-inputs 100000`: so many inputs for each target, a tenth of them from
the grammar where there is one.
"""

import pytest
from hypothesis import HealthCheck, given, settings

from fuzz.bodies import SAMPLES, check_body, check_mutated, grammar, odd_shapes
from fuzz.mutation import try_all
from gateway.dialects import DIALECTS

# What the fuzz has come upon, and stands since.
KEPT = {
    "half a surrogate pair in a key that nobody knows": b'{"prompt":"x","messages":[{}],"\\ud83d":1,"stream":true}',
    "the same within the options": b'{"prompt":"x","messages":[{}],"stream_options":{"\\ud83d":2},"stream":true}',
}


@pytest.mark.parametrize("path", SAMPLES)
@pytest.mark.parametrize("kept", KEPT)
def test_what_was_found_before_stands(path: str, kept: str) -> None:
    check_body(DIALECTS[path], KEPT[kept])


@pytest.mark.parametrize("path", SAMPLES)
def test_a_value_of_any_shape_in_any_place_is_read_or_refused(path: str) -> None:
    for sample in SAMPLES[path]:
        for body in odd_shapes(sample):
            check_body(DIALECTS[path], body)


@pytest.mark.parametrize("path", SAMPLES)
def test_mutated_bodies_are_read_or_refused(path: str, fuzz_inputs: int) -> None:
    try_all(f"bodies of {path}", fuzz_inputs, SAMPLES[path], check_mutated(DIALECTS[path]))


@pytest.mark.parametrize("path", SAMPLES)
def test_bodies_of_the_grammar_are_read_or_refused_and_edited_in_place(path: str, fuzz_inputs: int) -> None:
    @settings(max_examples=max(100, fuzz_inputs // 10), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(body=grammar(path))
    def run(body: bytes) -> None:
        check_body(DIALECTS[path], body)

    run()
