"""What a connection is told last: why nothing more is read on it."""

import random

from gateway.dialects.openai_error import error_body
from gateway.relay.headers import date_header, header_lines
from gateway.web.door import DoorReason
from gateway.web.error_answers import answer_at_door
from gateway.web.wire_client import status_line


def last_words(reason: DoorReason, jitter: random.Random) -> bytes:
    """A whole answer."""
    answer = answer_at_door(reason, jitter)
    body = error_body(answer.facts)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    return status_line(answer.facts.status) + header_lines((*headers, date_header(), *answer.headers)) + b"\r\n" + body
