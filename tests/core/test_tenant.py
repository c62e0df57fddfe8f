"""What a tenant may have cannot be nonsense, and a caller cannot push itself forward."""

from typing import Any

import pytest

from gateway.core.names import ANONYMOUS
from gateway.core.tenant import ANONYMOUS_TERMS, TenantTerms
from support.tickets import ticket


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": float("inf")}, "weight"),
        ({"cap_blocks": 0}, "block cap"),
        ({"cap_requests": 0}, "request cap"),
        ({"queue_share": 0.0}, "queue share"),
        ({"queue_share": 1.5}, "queue share"),
    ],
)
def test_terms_that_cannot_be_are_refused_with_a_sentence(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TenantTerms(**terms)


def test_who_says_nothing_of_itself_is_anonymous() -> None:
    assert ticket(1).tenant == ANONYMOUS
    assert ticket(1).terms is ANONYMOUS_TERMS


def test_a_caller_may_step_back_but_forward_only_by_its_terms() -> None:
    plain, trusted = TenantTerms(priority=5), TenantTerms(priority=5, may_set_priority=True)
    assert [plain.priority_of(sent) for sent in (None, -3, 9)] == [5, 5, 9]
    assert [trusted.priority_of(sent) for sent in (None, -3, 9)] == [5, -3, 9]
