"""Members of a body are found when they are asked for, as they were sent."""

import pytest

from gateway.core.request import CapState, Countable, InferenceRequest
from gateway.dialects.body_members import decoder_of, members_of

DECODER = decoder_of(("tools", "messages"))


def countable(body: bytes) -> Countable:
    return Countable(members_of(body, DECODER))


def test_members_are_as_they_were_sent_and_those_that_are_not_there_are_left_out() -> None:
    members = members_of(b'{"model":"m", "messages" : [ {"a": 1.0} ], "other":5}', DECODER)
    assert members == {"messages": b'[ {"a": 1.0} ]'}
    assert len(members) == 1
    with pytest.raises(KeyError):
        members["tools"]


def test_a_body_is_taken_apart_once_and_not_kept() -> None:
    body = b'{"tools":[],"messages":null}'
    request = InferenceRequest(None, (), CapState.ABSENT, None, is_chat=True, to_count=(countable, body))
    members = request.countable.chat
    assert members is not None
    assert [*members] == ["tools", "messages"]
    assert request.countable.chat is members
    assert request.to_count == Countable(members)
