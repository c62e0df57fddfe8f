"""Errors on paths that are no dialect's own: of uncounted calls and of control routes. OpenAI's shape, which every client
knows, except below the path where Anthropic's clients read."""

import random

from gateway.core.errors import GatewayError
from gateway.dialects import anthropic_error, openai_error
from gateway.dialects.dialect import ErrorFacts
from gateway.relay.downstream import AsgiDownstream
from gateway.web.error_answers import answer_to


def dress(path: str, error: ErrorFacts) -> bytes:
    """The body of an error on this path."""
    is_anthropic = path == "/v1/messages" or path.startswith("/v1/messages/")
    return anthropic_error.error_body(error) if is_anthropic else openai_error.error_body(error)


async def write_error(client: AsgiDownstream, error: GatewayError, jitter: random.Random, *, path: str = "") -> None:
    """Answer with the error; nothing of an answer may have been sent. path: what was asked for, where that shapes it."""
    answer = answer_to(error, jitter=jitter)
    body = dress(path, answer.facts)
    await client.write_head(answer.status, answer.head_for(body))
    await client.write_body(body)
    await client.finish()
