"""Errors that no dialect dresses: of uncounted paths and of control routes. OpenAI's shape, which every client knows."""

import random

from gateway.core.errors import GatewayError
from gateway.dialects.openai_error import error_body
from gateway.relay.downstream import AsgiDownstream
from gateway.web.error_answers import answer_to


async def write_error(client: AsgiDownstream, error: GatewayError, jitter: random.Random) -> None:
    """Answer with the error; nothing of an answer may have been sent."""
    answer = answer_to(error, jitter=jitter)
    body = error_body(answer.facts)
    await client.write_head(answer.status, answer.head_for(body))
    await client.write_body(body)
    await client.finish()
