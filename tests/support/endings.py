"""How answers end, and how a test tells: a failure is told by a status, or by an end that no client takes for a good one."""

import json
from collections.abc import Mapping
from typing import Final

from support.http_client import Answer

BEFORE: Final = "upstream_error_before"
AFTER: Final = "upstream_error_after"


def rise(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Which outcomes were counted in between, and how often."""
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def check_told(found: Answer) -> None:
    """A failure is a status with a JSON error, or, once bytes flowed, an end that no client takes for a good one."""
    if found.status >= 400:
        assert isinstance(found.json(), dict)
        assert found.error["message"]
    elif found.head.is_event_stream:
        assert is_visibly_broken(found), found
    elif found.body != b"{}":
        assert not found.is_tidy


def is_visibly_broken(found: Answer) -> bool:
    """No tidy end, or an error as the last event; and in neither case a mark of success that nobody sent."""
    assert b"[DONE]" not in found.body, "an end was invented"
    if not found.is_tidy:
        return True
    last = found.events[-1] if found.events else b"{}"
    return "error" in json.loads(last)
