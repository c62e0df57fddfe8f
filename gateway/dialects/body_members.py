"""Members of a body as raw JSON, for whoever counts a prompt exactly, as they were sent.

Most prompts are never counted, so a body is not taken apart for that when it is read.
"""

import msgspec

from gateway.dialects.openai_body import Raw


def decoder_of(names: tuple[str, ...]) -> msgspec.json.Decoder[msgspec.Struct]:
    """A decoder that leaves the members of these names raw, and every other one unread."""
    members = msgspec.defstruct("Members", [(name, Raw, msgspec.UNSET) for name in names])
    return msgspec.json.Decoder(members)


def members_of(body: bytes, decoder: msgspec.json.Decoder[msgspec.Struct]) -> dict[str, bytes]:
    """The members that are there, in the order in which the decoder names them.

    body: one that the dialect has read, so that it is sound. decoder: made by `decoder_of`.
    """
    read = decoder.decode(body)
    members = ((name, getattr(read, name)) for name in read.__struct_fields__)
    return {name: bytes(raw) for name, raw in members if raw is not msgspec.UNSET}
