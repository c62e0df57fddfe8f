"""BodyMembers: members of a body as raw JSON, looked for when somebody asks for them, which is seldom.

Whoever counts a prompt exactly needs them as they were sent. Most prompts are never counted, so a body is not taken apart for
that when it is read.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gateway.dialects.openai_body import Raw


class BodyMembers(Mapping[str, bytes]):
    """What a body has of the members that a decoder reads. body: one that the dialect has read, so that it is sound."""

    __slots__ = ("_body", "_decoder", "_found")

    def __init__(self, body: bytes, decoder: msgspec.json.Decoder[msgspec.Struct]) -> None:
        """decoder: made by `decoder_of`."""
        self._body = body
        self._decoder = decoder
        self._found: dict[str, bytes] | None = None

    def __getitem__(self, name: str) -> bytes:
        return self._members()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members())

    def __len__(self) -> int:
        return len(self._members())

    def _members(self) -> dict[str, bytes]:
        if self._found is None:
            self._found = raw_members(self._decoder.decode(self._body))
            self._body = b""
        return self._found


def decoder_of(names: tuple[str, ...]) -> msgspec.json.Decoder[msgspec.Struct]:
    """A decoder that leaves the members of these names raw, and every other one unread."""
    members = msgspec.defstruct("Members", [(name, Raw, msgspec.UNSET) for name in names])
    return msgspec.json.Decoder(members)


def raw_members(read: msgspec.Struct) -> dict[str, bytes]:
    """The members that are there, in the order in which the decoder names them."""
    members = ((name, getattr(read, name)) for name in read.__struct_fields__)
    return {name: bytes(raw) for name, raw in members if raw is not msgspec.UNSET}
