"""How many inputs each target gets."""

import pytest


@pytest.fixture
def fuzz_inputs(pytestconfig: pytest.Config) -> int:
    inputs: int = pytestconfig.getoption("--fuzz-inputs")
    return inputs
