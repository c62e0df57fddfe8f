"""Members of a body are found when they are asked for, as they were sent."""

import pytest

from gateway.dialects.body_members import BodyMembers, decoder_of

DECODER = decoder_of(("tools", "messages"))


def test_members_are_as_they_were_sent_and_those_that_are_not_there_are_left_out() -> None:
    members = BodyMembers(b'{"model":"m", "messages" : [ {"a": 1.0} ], "other":5}', DECODER)
    assert members == {"messages": b'[ {"a": 1.0} ]'}
    assert len(members) == 1
    with pytest.raises(KeyError):
        members["tools"]


def test_a_body_is_taken_apart_once_and_not_kept() -> None:
    members = BodyMembers(b'{"tools":[],"messages":null}', DECODER)
    assert [*members] == ["tools", "messages"]
    assert members["messages"] is members["messages"]
