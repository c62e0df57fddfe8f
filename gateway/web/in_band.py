"""What the engine says to a stream whose head is out already, where it says anything else than a stream: told in the stream."""

import json
from typing import Any, Final

from gateway.core.outcomes import Outcome
from gateway.dialects.dialect import Dialect, ErrorFacts
from gateway.relay.downstream import Downstream
from gateway.relay.upstream import UpstreamExchange, UpstreamHead

# An error is one sentence; of more than this no part is read (bytes).
_LIMIT_BYTES: Final = 64 * 1024


def goes_under_a_stream(head: UpstreamHead) -> bool:
    """Whether an answer's body can go on under the head that was sent early: a plain event stream, and nothing else."""
    return 200 <= head.status < 300 and head.is_event_stream and head.content_encoding is None


async def tell_in_band(exchange: UpstreamExchange, head: UpstreamHead, client: Downstream, dialect: Dialect) -> Outcome:
    """End the stream with the engine's own refusal or failure as an error event.

    Raises UpstreamFailed if the engine breaks off before it has said it. The caller closes the exchange.
    """
    said = bytearray()
    while len(said) <= _LIMIT_BYTES and (data := await exchange.read()):
        said += data
    await client.write_body(dialect.error_event(_facts_of(head, bytes(said))))
    await client.finish()
    return Outcome.ENGINE_REFUSED if 400 <= head.status < 500 else Outcome.UPSTREAM_ERROR_BEFORE


def _facts_of(head: UpstreamHead, said: bytes) -> ErrorFacts:
    """The engine's words, as far as they can be found: engines put them under `error`, or leave that out."""
    message = f"the inference server answered {head.status} and no stream"
    status = head.status if head.status >= 400 else 502
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        error = found.get("error", found)
        words = error if isinstance(error, str) else error.get("message") if isinstance(error, dict) else None
        if isinstance(words, str) and words:
            message = f"the inference server answered {head.status}: {words}"
    return ErrorFacts(status, "upstream_refused" if status < 500 else "upstream_failed", message)
