"""Rules and configuration as Prometheus' own tool sees them."""

import pytest

from support.programs import DEPLOY, program, run

pytestmark = pytest.mark.system

PROMETHEUS = DEPLOY / "prometheus"


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    rules = [str(path) for path in sorted((PROMETHEUS / "rules").glob("*.yml"))]
    run(program("promtool"), "check", "rules", *rules)
    run(program("promtool"), "check", "config", str(PROMETHEUS / "prometheus.yml"))


def test_the_rules_pass_their_unit_tests() -> None:
    run(program("promtool"), "test", "rules", "rules_test.yml", cwd=PROMETHEUS)
