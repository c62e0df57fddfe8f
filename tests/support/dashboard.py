"""The Grafana dashboard in deploy/, as queries that Prometheus can answer without Grafana."""

import json
from collections.abc import Iterator
from typing import Any, Final

from support.programs import DEPLOY

# What Grafana puts in the place of its variables.
_CHOSEN: Final = {"$__rate_interval": "2m", "$instance": ".*", "$backend": ".*", "$model": ".*"}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "kvgate.json").read_text())
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Title of the panel and expression, for each query of each panel."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in _CHOSEN.items():
                expression = expression.replace(variable, value)
            assert "$" not in expression, expression
            yield panel["title"], expression
