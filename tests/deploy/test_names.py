"""What deploy/ asks for exists: dashboards and alerts that ask for a metric of another name show nothing, for ever."""

import re
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from support.dashboard import dashboard, queries
from support.programs import DEPLOY

RULES = DEPLOY / "prometheus" / "rules"


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def known() -> set[str]:
    """Every name that a scrape may have samples of."""
    names: set[str] = set()
    for family in text_string_to_metric_families(Metrics("1").exposition().decode()):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names | {rule["record"] for rule in rules() if "record" in rule}


def asked(expression: str) -> set[str]:
    """The metrics of ours in a query."""
    without_texts = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(?:[a-z]+:)?kvgate[a-z0-9_:]*", without_texts))


def test_rules_ask_for_metrics_that_exist() -> None:
    for rule in rules():
        assert asked(rule["expr"]) <= known(), rule


def test_panels_ask_for_metrics_that_exist() -> None:
    for title, expression in queries():
        assert asked(expression), title
        assert asked(expression) <= known(), title


def test_every_alert_says_what_it_is_about_and_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())["tests"]
    firing = {case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case.get("exp_alerts")}
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert set(alerts) == firing
    for name, rule in alerts.items():
        assert set(rule["annotations"]) == {"summary", "description"}, name
        assert rule["labels"]["severity"] in ("warning", "critical"), name


def test_panels_do_not_lie_upon_each_other_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"], panel["title"]
